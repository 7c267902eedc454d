#include "cli/measure/report_page.hpp"

namespace penstock::cli {

// Colours that also differ in lightness and suit people with colour blindness (after Okabe and Ito).
const char* const report_style = R"css(
:root { color-scheme: light dark; --paper: #fcfcfa; --ink: #1d2126; --soft: #59626d; --line: #d9dcd8; --faint: #ecedea; --panel: #f3f4f1;
  --s0: #0b5fa5; --s1: #c2410c; --s2: #15795a; --s3: #8a3b8f; --s4: #8a6a00; --s5: #1a8aa8; --s6: #b0234f; --s7: #4d5661;
  --ok: #15795a; --slow: #8a6a00; --broken: #b0234f; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e7e9ea; --soft: #a2abb5; --line: #3a414a; --faint: #262c33;
  --panel: #1b2026; --s0: #6cb6ff; --s1: #ff9c66; --s2: #5fd3a6; --s3: #dd9be6; --s4: #e6c655; --s5: #6fd6ee; --s6: #ff8fab; --s7: #b8c1cb;
  --ok: #5fd3a6; --slow: #e6c655; --broken: #ff8fab; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", "Liberation Sans", sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 3rem 1.25rem 5rem; }
header { border-bottom: 2px solid var(--ink); padding-bottom: 1.25rem; margin-bottom: 2rem; }
.kind { text-transform: uppercase; letter-spacing: .12em; font-size: .78rem; color: var(--soft); margin: 0; }
h1 { font-size: 2rem; line-height: 1.2; margin: .2rem 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 3rem 0 .5rem; padding-top: .8rem; border-top: 1px solid var(--line); }
p { max-width: 46rem; margin: .5rem 0; }
.soft, .about { color: var(--soft); }
.about { font-size: .88rem; }
code { font: .88em ui-monospace, "Liberation Mono", monospace; background: var(--panel); padding: .1em .35em; border-radius: 3px; overflow-wrap: anywhere; }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0; margin: .8rem 0 0; }
a { color: var(--s0); }
.keys { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 1px; background: var(--line); border: 1px solid var(--line); margin: 0; }
.keys div { background: var(--paper); padding: .8rem 1rem; }
.keys dt { font-size: .82rem; color: var(--soft); }
.keys dd { margin: 0; font-size: 1.55rem; font-variant-numeric: tabular-nums; }
.keys dd small { display: block; font-size: .8rem; color: var(--soft); }
figure { margin: 1.8rem 0; }
figcaption { font-weight: 600; margin-bottom: .3rem; }
.wide { overflow-x: auto; }
svg { display: block; width: 100%; min-width: 36rem; height: auto; font: 12px system-ui, "Liberation Sans", sans-serif; }
svg text { fill: var(--soft); } svg .name { fill: var(--ink); } svg .level-name { fill: var(--soft); font-style: italic; } svg .axis { font-weight: 600; }
.grid { stroke: var(--line); stroke-width: 1; } .minor { stroke: var(--faint); } .base { stroke: var(--soft); stroke-width: 1.2; }
.level { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 1 4; stroke-linecap: round; } .leader { fill: none; stroke: var(--line); }
.l { fill: none; stroke-width: 2; stroke-linejoin: round; } .m { fill: var(--paper); stroke-width: 1.8; }
.d1 { stroke-dasharray: 8 4; } .d2 { stroke-dasharray: 2.5 3.5; } .d3 { stroke-dasharray: 11 4 2 4; } .d4 { stroke-dasharray: 5 3; }
.d5 { stroke-dasharray: 14 4; } .d6 { stroke-dasharray: 2 2; } .d7 { stroke-dasharray: 9 3 2 3 2 3; }
.s0 { stroke: var(--s0); } .s1 { stroke: var(--s1); } .s2 { stroke: var(--s2); } .s3 { stroke: var(--s3); }
.s4 { stroke: var(--s4); } .s5 { stroke: var(--s5); } .s6 { stroke: var(--s6); } .s7 { stroke: var(--s7); }
.b { stroke-width: 1.5; fill-opacity: .12; } .b.s0 { fill: var(--s0); fill-opacity: .85; } .b.s1 { fill: var(--s1); } .b.s7 { fill: var(--s7); stroke-dasharray: 4 3; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; margin: 1.2rem 0; }
caption { text-align: left; font-weight: 600; padding-bottom: .35rem; }
th, td { text-align: left; padding: .28rem .7rem .28rem 0; border-bottom: 1px solid var(--faint); vertical-align: top; font-weight: 400; }
thead th { color: var(--soft); border-bottom: 1px solid var(--soft); font-weight: 600; vertical-align: bottom; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; padding-left: .4rem; }
.verdict-ok { color: var(--ok); } .verdict-slow { color: var(--slow); font-weight: 600; } .verdict-broken { color: var(--broken); font-weight: 600; }
ul.findings { padding-left: 0; list-style: none; } ul.findings li { padding: .25rem 0; border-bottom: 1px solid var(--faint); }
ul.findings b { display: inline-block; min-width: 5.5em; }
@media print { :root { color-scheme: light; --paper: #fff; --ink: #000; --soft: #444; --line: #bbb; --faint: #ddd; --panel: #f4f4f4;
    --s0: #0b5fa5; --s1: #c2410c; --s2: #15795a; --s3: #8a3b8f; --s4: #8a6a00; --s5: #1a8aa8; --s6: #b0234f; --s7: #4d5661; }
  body { font-size: 10pt; } main { max-width: none; padding: 0; } nav { display: none; } figure, tr, .keys { break-inside: avoid; } h2 { break-after: avoid; }
  svg { min-width: 0; max-height: 11cm; } .wide { overflow: visible; } }
)css";

}  // namespace penstock::cli
