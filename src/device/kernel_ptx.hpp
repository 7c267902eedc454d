// kernels.cu as PTX text, which the driver compiles for the GPU if kernel_code.hpp has no code for it, or if the driver is too old to read
// that. Made by tools/make_kernels. `.version` and `.target` are lowered so that drivers since CUDA 11.0 (450) and GPUs since Volta accept
// it.
#pragma once

namespace penstock::device {

inline constexpr char kernel_ptx[] = R"ptx(.version 7.0
.target sm_70
.address_size 64
.visible .entry penstock_scatter(
	.param .u64 penstock_scatter_param_0,
	.param .u64 penstock_scatter_param_1
)
{
	.reg .pred 	%p<26>;
	.reg .b16 	%rs<7>;
	.reg .b32 	%r<40>;
	.reg .b64 	%rd<115>;
	ld.param.u64 	%rd49, [penstock_scatter_param_0];
	ld.param.u64 	%rd50, [penstock_scatter_param_1];
	mov.u32 	%r3, %ctaid.y;
	mov.u32 	%r4, %ntid.x;
	mul.wide.u32 	%rd51, %r3, %r4;
	mov.u32 	%r5, %tid.x;
	cvt.u64.u32 	%rd52, %r5;
	add.s64 	%rd1, %rd51, %rd52;
	mov.u32 	%r6, %ctaid.x;
	cvt.u64.u32 	%rd105, %r6;
	setp.ge.u64 	%p1, %rd105, %rd50;
	@%p1 bra 	$L__BB0_32;
	cvta.to.global.u64 	%rd53, %rd49;
	mov.u32 	%r8, %nctaid.y;
	mov.u32 	%r39, %nctaid.x;
$L__BB0_2:
	mul.lo.s64 	%rd54, %rd105, 24;
	add.s64 	%rd55, %rd53, %rd54;
	ld.global.u64 	%rd4, [%rd55+16];
	ld.global.u64 	%rd5, [%rd55];
	ld.global.u64 	%rd6, [%rd55+8];
	xor.b64  	%rd7, %rd6, %rd5;
	and.b64  	%rd56, %rd7, 15;
	setp.eq.s64 	%p2, %rd56, 0;
	@%p2 bra 	$L__BB0_22;
	and.b64  	%rd57, %rd7, 3;
	setp.eq.s64 	%p3, %rd57, 0;
	neg.s64 	%rd58, %rd6;
	and.b64  	%rd8, %rd58, 3;
	@%p3 bra 	$L__BB0_13;
	sub.s64 	%rd59, %rd5, %rd6;
	cvt.u32.u64 	%r7, %rd59;
	and.b32  	%r1, %r7, 3;
	and.b64  	%rd60, %rd59, 3;
	setp.lt.u64 	%p4, %rd8, %rd60;
	or.b64  	%rd61, %rd8, 4;
	selp.b64 	%rd62, %rd61, %rd8, %p4;
	or.b64  	%rd63, %rd62, 8;
	setp.lt.u64 	%p5, %rd4, %rd63;
	add.s64 	%rd64, %rd4, -4;
	sub.s64 	%rd65, %rd64, %rd62;
	shr.u64 	%rd66, %rd65, 2;
	selp.b64 	%rd9, 0, %rd66, %p5;
	setp.eq.s64 	%p6, %rd9, 0;
	selp.b64 	%rd10, 0, %rd62, %p6;
	neg.s64 	%rd67, %rd60;
	selp.b64 	%rd11, 0, %rd67, %p6;
	setp.ge.u64 	%p7, %rd1, %rd10;
	@%p7 bra 	$L__BB0_7;
	mov.u64 	%rd106, %rd1;
$L__BB0_6:
	add.s64 	%rd68, %rd5, %rd106;
	ld.u8 	%rs1, [%rd68];
	add.s64 	%rd69, %rd6, %rd106;
	st.u8 	[%rd69], %rs1;
	mul.wide.u32 	%rd70, %r8, %r4;
	add.s64 	%rd106, %rd106, %rd70;
	setp.lt.u64 	%p8, %rd106, %rd10;
	@%p8 bra 	$L__BB0_6;
$L__BB0_7:
	setp.ge.u64 	%p9, %rd1, %rd9;
	@%p9 bra 	$L__BB0_10;
	shl.b32 	%r2, %r1, 3;
	add.s64 	%rd71, %rd10, %rd11;
	add.s64 	%rd14, %rd5, %rd71;
	add.s64 	%rd15, %rd6, %rd10;
	mov.u64 	%rd107, %rd1;
$L__BB0_9:
	shl.b64 	%rd72, %rd107, 2;
	add.s64 	%rd73, %rd14, %rd72;
	ld.u32 	%r11, [%rd73];
	ld.u32 	%r12, [%rd73+4];
	shf.r.wrap.b32 %r10, %r11, %r12, %r2;
	add.s64 	%rd74, %rd15, %rd72;
	st.u32 	[%rd74], %r10;
	mul.wide.u32 	%rd75, %r8, %r4;
	add.s64 	%rd107, %rd107, %rd75;
	setp.lt.u64 	%p10, %rd107, %rd9;
	@%p10 bra 	$L__BB0_9;
$L__BB0_10:
	shl.b64 	%rd76, %rd9, 2;
	add.s64 	%rd77, %rd76, %rd1;
	add.s64 	%rd108, %rd77, %rd10;
	setp.ge.u64 	%p11, %rd108, %rd4;
	@%p11 bra 	$L__BB0_31;
	mul.wide.u32 	%rd19, %r8, %r4;
$L__BB0_12:
	add.s64 	%rd78, %rd5, %rd108;
	ld.u8 	%rs2, [%rd78];
	add.s64 	%rd79, %rd6, %rd108;
	st.u8 	[%rd79], %rs2;
	add.s64 	%rd108, %rd108, %rd19;
	setp.lt.u64 	%p12, %rd108, %rd4;
	@%p12 bra 	$L__BB0_12;
	bra.uni 	$L__BB0_31;
$L__BB0_22:
	neg.s64 	%rd91, %rd6;
	and.b64  	%rd92, %rd91, 15;
	min.u64 	%rd35, %rd92, %rd4;
	sub.s64 	%rd36, %rd4, %rd35;
	shr.u64 	%rd37, %rd36, 4;
	setp.ge.u64 	%p19, %rd1, %rd35;
	@%p19 bra 	$L__BB0_25;
	mov.u64 	%rd112, %rd1;
$L__BB0_24:
	add.s64 	%rd93, %rd5, %rd112;
	ld.u8 	%rs5, [%rd93];
	add.s64 	%rd94, %rd6, %rd112;
	st.u8 	[%rd94], %rs5;
	mul.wide.u32 	%rd95, %r8, %r4;
	add.s64 	%rd112, %rd112, %rd95;
	setp.lt.u64 	%p20, %rd112, %rd35;
	@%p20 bra 	$L__BB0_24;
$L__BB0_25:
	setp.ge.u64 	%p21, %rd1, %rd37;
	@%p21 bra 	$L__BB0_28;
	add.s64 	%rd40, %rd5, %rd35;
	add.s64 	%rd41, %rd6, %rd35;
	mov.u64 	%rd113, %rd1;
$L__BB0_27:
	shl.b64 	%rd96, %rd113, 4;
	add.s64 	%rd97, %rd41, %rd96;
	add.s64 	%rd98, %rd40, %rd96;
	ld.v4.u32 	{%r27, %r28, %r29, %r30}, [%rd98];
	st.v4.u32 	[%rd97], {%r27, %r28, %r29, %r30};
	mul.wide.u32 	%rd99, %r8, %r4;
	add.s64 	%rd113, %rd113, %rd99;
	setp.lt.u64 	%p22, %rd113, %rd37;
	@%p22 bra 	$L__BB0_27;
$L__BB0_28:
	and.b64  	%rd100, %rd36, -16;
	add.s64 	%rd101, %rd35, %rd1;
	add.s64 	%rd114, %rd101, %rd100;
	setp.ge.u64 	%p23, %rd114, %rd4;
	@%p23 bra 	$L__BB0_31;
	mul.wide.u32 	%rd45, %r8, %r4;
$L__BB0_30:
	add.s64 	%rd102, %rd5, %rd114;
	ld.u8 	%rs6, [%rd102];
	add.s64 	%rd103, %rd6, %rd114;
	st.u8 	[%rd103], %rs6;
	add.s64 	%rd114, %rd114, %rd45;
	setp.lt.u64 	%p24, %rd114, %rd4;
	@%p24 bra 	$L__BB0_30;
	bra.uni 	$L__BB0_31;
$L__BB0_13:
	min.u64 	%rd22, %rd8, %rd4;
	sub.s64 	%rd23, %rd4, %rd22;
	shr.u64 	%rd24, %rd23, 2;
	setp.ge.u64 	%p13, %rd1, %rd22;
	@%p13 bra 	$L__BB0_16;
	mov.u64 	%rd109, %rd1;
$L__BB0_15:
	add.s64 	%rd80, %rd5, %rd109;
	ld.u8 	%rs3, [%rd80];
	add.s64 	%rd81, %rd6, %rd109;
	st.u8 	[%rd81], %rs3;
	mul.wide.u32 	%rd82, %r8, %r4;
	add.s64 	%rd109, %rd109, %rd82;
	setp.lt.u64 	%p14, %rd109, %rd22;
	@%p14 bra 	$L__BB0_15;
$L__BB0_16:
	setp.ge.u64 	%p15, %rd1, %rd24;
	@%p15 bra 	$L__BB0_19;
	add.s64 	%rd27, %rd5, %rd22;
	add.s64 	%rd28, %rd6, %rd22;
	mov.u64 	%rd110, %rd1;
$L__BB0_18:
	shl.b64 	%rd83, %rd110, 2;
	add.s64 	%rd84, %rd27, %rd83;
	ld.u32 	%r20, [%rd84];
	add.s64 	%rd85, %rd28, %rd83;
	st.u32 	[%rd85], %r20;
	mul.wide.u32 	%rd86, %r8, %r4;
	add.s64 	%rd110, %rd110, %rd86;
	setp.lt.u64 	%p16, %rd110, %rd24;
	@%p16 bra 	$L__BB0_18;
$L__BB0_19:
	and.b64  	%rd87, %rd23, -4;
	add.s64 	%rd88, %rd22, %rd1;
	add.s64 	%rd111, %rd88, %rd87;
	setp.ge.u64 	%p17, %rd111, %rd4;
	@%p17 bra 	$L__BB0_31;
	mul.wide.u32 	%rd32, %r8, %r4;
$L__BB0_21:
	add.s64 	%rd89, %rd5, %rd111;
	ld.u8 	%rs4, [%rd89];
	add.s64 	%rd90, %rd6, %rd111;
	st.u8 	[%rd90], %rs4;
	add.s64 	%rd111, %rd111, %rd32;
	setp.lt.u64 	%p18, %rd111, %rd4;
	@%p18 bra 	$L__BB0_21;
$L__BB0_31:
	cvt.u64.u32 	%rd104, %r39;
	add.s64 	%rd105, %rd105, %rd104;
	setp.lt.u64 	%p25, %rd105, %rd50;
	@%p25 bra 	$L__BB0_2;
$L__BB0_32:
	ret;
}
.visible .entry penstock_scatter_short(
	.param .align 8 .b8 penstock_scatter_short_param_0[3072],
	.param .u64 penstock_scatter_short_param_1
)
{
	.reg .pred 	%p<26>;
	.reg .b16 	%rs<7>;
	.reg .b32 	%r<23>;
	.reg .b64 	%rd<109>;
	mov.b64 	%rd49, penstock_scatter_short_param_0;
	ld.param.u64 	%rd50, [penstock_scatter_short_param_1];
	mov.u32 	%r3, %ctaid.y;
	mov.u32 	%r4, %ntid.x;
	mul.wide.u32 	%rd51, %r3, %r4;
	mov.u32 	%r5, %tid.x;
	cvt.u64.u32 	%rd52, %r5;
	add.s64 	%rd1, %rd51, %rd52;
	mov.u32 	%r6, %nctaid.y;
	mul.wide.u32 	%rd2, %r6, %r4;
	mov.u32 	%r7, %ctaid.x;
	cvt.u64.u32 	%rd99, %r7;
	setp.ge.u64 	%p1, %rd99, %rd50;
	@%p1 bra 	$L__BB1_28;
$L__BB1_1:
	mul.lo.s64 	%rd54, %rd99, 24;
	add.s64 	%rd55, %rd49, %rd54;
	ld.param.u64 	%rd5, [%rd55];
	cvta.to.global.u64 	%rd6, %rd5;
	ld.param.u64 	%rd7, [%rd55+8];
	cvta.to.global.u64 	%rd8, %rd7;
	ld.param.u64 	%rd9, [%rd55+16];
	xor.b64  	%rd10, %rd7, %rd5;
	and.b64  	%rd56, %rd10, 15;
	setp.eq.s64 	%p2, %rd56, 0;
	@%p2 bra 	$L__BB1_19;
	and.b64  	%rd57, %rd10, 3;
	setp.eq.s64 	%p3, %rd57, 0;
	neg.s64 	%rd58, %rd7;
	and.b64  	%rd11, %rd58, 3;
	@%p3 bra 	$L__BB1_11;
	sub.s64 	%rd59, %rd5, %rd7;
	cvt.u32.u64 	%r8, %rd59;
	and.b32  	%r1, %r8, 3;
	and.b64  	%rd60, %rd59, 3;
	setp.lt.u64 	%p4, %rd11, %rd60;
	or.b64  	%rd61, %rd11, 4;
	selp.b64 	%rd62, %rd61, %rd11, %p4;
	or.b64  	%rd63, %rd62, 8;
	setp.lt.u64 	%p5, %rd9, %rd63;
	add.s64 	%rd64, %rd9, -4;
	sub.s64 	%rd65, %rd64, %rd62;
	shr.u64 	%rd66, %rd65, 2;
	selp.b64 	%rd12, 0, %rd66, %p5;
	setp.eq.s64 	%p6, %rd12, 0;
	selp.b64 	%rd13, 0, %rd62, %p6;
	neg.s64 	%rd67, %rd60;
	selp.b64 	%rd14, 0, %rd67, %p6;
	setp.ge.u64 	%p7, %rd1, %rd13;
	@%p7 bra 	$L__BB1_6;
	mov.u64 	%rd100, %rd1;
$L__BB1_5:
	add.s64 	%rd68, %rd6, %rd100;
	ld.global.u8 	%rs1, [%rd68];
	add.s64 	%rd69, %rd8, %rd100;
	st.global.u8 	[%rd69], %rs1;
	add.s64 	%rd100, %rd100, %rd2;
	setp.lt.u64 	%p8, %rd100, %rd13;
	@%p8 bra 	$L__BB1_5;
$L__BB1_6:
	setp.ge.u64 	%p9, %rd1, %rd12;
	@%p9 bra 	$L__BB1_9;
	shl.b32 	%r2, %r1, 3;
	add.s64 	%rd70, %rd13, %rd14;
	add.s64 	%rd17, %rd6, %rd70;
	add.s64 	%rd18, %rd8, %rd13;
	mov.u64 	%rd101, %rd1;
$L__BB1_8:
	shl.b64 	%rd71, %rd101, 2;
	add.s64 	%rd72, %rd17, %rd71;
	ld.global.u32 	%r10, [%rd72];
	ld.global.u32 	%r11, [%rd72+4];
	shf.r.wrap.b32 %r9, %r10, %r11, %r2;
	add.s64 	%rd73, %rd18, %rd71;
	st.global.u32 	[%rd73], %r9;
	add.s64 	%rd101, %rd101, %rd2;
	setp.lt.u64 	%p10, %rd101, %rd12;
	@%p10 bra 	$L__BB1_8;
$L__BB1_9:
	shl.b64 	%rd74, %rd12, 2;
	add.s64 	%rd75, %rd74, %rd1;
	add.s64 	%rd102, %rd75, %rd13;
	setp.ge.u64 	%p11, %rd102, %rd9;
	@%p11 bra 	$L__BB1_27;
$L__BB1_10:
	add.s64 	%rd76, %rd6, %rd102;
	ld.global.u8 	%rs2, [%rd76];
	add.s64 	%rd77, %rd8, %rd102;
	st.global.u8 	[%rd77], %rs2;
	add.s64 	%rd102, %rd102, %rd2;
	setp.lt.u64 	%p12, %rd102, %rd9;
	@%p12 bra 	$L__BB1_10;
	bra.uni 	$L__BB1_27;
$L__BB1_19:
	neg.s64 	%rd87, %rd7;
	and.b64  	%rd88, %rd87, 15;
	min.u64 	%rd36, %rd88, %rd9;
	sub.s64 	%rd37, %rd9, %rd36;
	shr.u64 	%rd38, %rd37, 4;
	setp.ge.u64 	%p19, %rd1, %rd36;
	@%p19 bra 	$L__BB1_22;
	mov.u64 	%rd106, %rd1;
$L__BB1_21:
	add.s64 	%rd89, %rd6, %rd106;
	ld.global.u8 	%rs5, [%rd89];
	add.s64 	%rd90, %rd8, %rd106;
	st.global.u8 	[%rd90], %rs5;
	add.s64 	%rd106, %rd106, %rd2;
	setp.lt.u64 	%p20, %rd106, %rd36;
	@%p20 bra 	$L__BB1_21;
$L__BB1_22:
	setp.ge.u64 	%p21, %rd1, %rd38;
	@%p21 bra 	$L__BB1_25;
	add.s64 	%rd41, %rd6, %rd36;
	add.s64 	%rd42, %rd8, %rd36;
	mov.u64 	%rd107, %rd1;
$L__BB1_24:
	shl.b64 	%rd91, %rd107, 4;
	add.s64 	%rd92, %rd42, %rd91;
	add.s64 	%rd93, %rd41, %rd91;
	ld.global.v4.u32 	{%r14, %r15, %r16, %r17}, [%rd93];
	st.global.v4.u32 	[%rd92], {%r14, %r15, %r16, %r17};
	add.s64 	%rd107, %rd107, %rd2;
	setp.lt.u64 	%p22, %rd107, %rd38;
	@%p22 bra 	$L__BB1_24;
$L__BB1_25:
	and.b64  	%rd94, %rd37, -16;
	add.s64 	%rd95, %rd36, %rd1;
	add.s64 	%rd108, %rd95, %rd94;
	setp.ge.u64 	%p23, %rd108, %rd9;
	@%p23 bra 	$L__BB1_27;
$L__BB1_26:
	add.s64 	%rd96, %rd6, %rd108;
	ld.global.u8 	%rs6, [%rd96];
	add.s64 	%rd97, %rd8, %rd108;
	st.global.u8 	[%rd97], %rs6;
	add.s64 	%rd108, %rd108, %rd2;
	setp.lt.u64 	%p24, %rd108, %rd9;
	@%p24 bra 	$L__BB1_26;
	bra.uni 	$L__BB1_27;
$L__BB1_11:
	min.u64 	%rd24, %rd11, %rd9;
	sub.s64 	%rd25, %rd9, %rd24;
	shr.u64 	%rd26, %rd25, 2;
	setp.ge.u64 	%p13, %rd1, %rd24;
	@%p13 bra 	$L__BB1_14;
	mov.u64 	%rd103, %rd1;
$L__BB1_13:
	add.s64 	%rd78, %rd6, %rd103;
	ld.global.u8 	%rs3, [%rd78];
	add.s64 	%rd79, %rd8, %rd103;
	st.global.u8 	[%rd79], %rs3;
	add.s64 	%rd103, %rd103, %rd2;
	setp.lt.u64 	%p14, %rd103, %rd24;
	@%p14 bra 	$L__BB1_13;
$L__BB1_14:
	setp.ge.u64 	%p15, %rd1, %rd26;
	@%p15 bra 	$L__BB1_17;
	add.s64 	%rd29, %rd6, %rd24;
	add.s64 	%rd30, %rd8, %rd24;
	mov.u64 	%rd104, %rd1;
$L__BB1_16:
	shl.b64 	%rd80, %rd104, 2;
	add.s64 	%rd81, %rd29, %rd80;
	ld.global.u32 	%r13, [%rd81];
	add.s64 	%rd82, %rd30, %rd80;
	st.global.u32 	[%rd82], %r13;
	add.s64 	%rd104, %rd104, %rd2;
	setp.lt.u64 	%p16, %rd104, %rd26;
	@%p16 bra 	$L__BB1_16;
$L__BB1_17:
	and.b64  	%rd83, %rd25, -4;
	add.s64 	%rd84, %rd24, %rd1;
	add.s64 	%rd105, %rd84, %rd83;
	setp.ge.u64 	%p17, %rd105, %rd9;
	@%p17 bra 	$L__BB1_27;
$L__BB1_18:
	add.s64 	%rd85, %rd6, %rd105;
	ld.global.u8 	%rs4, [%rd85];
	add.s64 	%rd86, %rd8, %rd105;
	st.global.u8 	[%rd86], %rs4;
	add.s64 	%rd105, %rd105, %rd2;
	setp.lt.u64 	%p18, %rd105, %rd9;
	@%p18 bra 	$L__BB1_18;
$L__BB1_27:
	mov.u32 	%r22, %nctaid.x;
	cvt.u64.u32 	%rd98, %r22;
	add.s64 	%rd99, %rd99, %rd98;
	setp.lt.u64 	%p25, %rd99, %rd50;
	@%p25 bra 	$L__BB1_1;
$L__BB1_28:
	ret;
}
.visible .entry penstock_digest(
	.param .align 8 .b8 penstock_digest_param_0[3072],
	.param .u64 penstock_digest_param_1,
	.param .u64 penstock_digest_param_2
)
.maxntid 256, 1, 1
{
	.reg .pred 	%p<28>;
	.reg .b32 	%r<57>;
	.reg .b64 	%rd<248>;
	.shared .align 8 .b8 _ZZ15penstock_digestE8of_warps[256];
	mov.b64 	%rd76, penstock_digest_param_0;
	ld.param.u64 	%rd77, [penstock_digest_param_1];
	setp.eq.s64 	%p1, %rd77, 0;
	mov.u64 	%rd231, 0;
	mov.u64 	%rd232, %rd231;
	mov.u64 	%rd233, %rd231;
	mov.u64 	%rd234, %rd231;
	mov.u64 	%rd235, %rd231;
	mov.u64 	%rd236, %rd231;
	@%p1 bra 	$L__BB2_13;
	mov.u64 	%rd231, 0;
	mov.u32 	%r10, %ctaid.x;
	mov.u32 	%r11, %nctaid.x;
	add.s32 	%r12, %r11, -1;
	mov.u32 	%r13, %tid.x;
	shl.b32 	%r14, %r13, 1;
	mov.u64 	%rd209, %rd231;
	mov.u64 	%rd210, %rd231;
$L__BB2_2:
	mul.lo.s64 	%rd94, %rd210, 24;
	add.s64 	%rd95, %rd76, %rd94;
	ld.param.u64 	%rd11, [%rd95+8];
	add.s64 	%rd96, %rd11, 4095;
	shr.u64 	%rd97, %rd96, 12;
	cvt.u64.u32 	%rd98, %r10;
	sub.s64 	%rd99, %rd98, %rd209;
	cvt.u64.u32 	%rd100, %r12;
	and.b64  	%rd217, %rd99, %rd100;
	setp.ge.u64 	%p2, %rd217, %rd97;
	@%p2 bra 	$L__BB2_12;
$L__BB2_3:
	mul.lo.s64 	%rd198, %rd210, 24;
	add.s64 	%rd197, %rd76, %rd198;
	ld.param.u64 	%rd196, [%rd197+8];
	mul.lo.s64 	%rd192, %rd210, 24;
	add.s64 	%rd191, %rd76, %rd192;
	ld.param.u64 	%rd190, [%rd191];
	mul.wide.u32 	%rd101, %r14, 8;
	shl.b64 	%rd102, %rd217, 12;
	add.s64 	%rd20, %rd102, %rd101;
	cvta.to.global.u64 	%rd103, %rd190;
	add.s64 	%rd224, %rd103, %rd20;
	add.s64 	%rd104, %rd190, %rd20;
	sub.s64 	%rd22, %rd196, %rd20;
	and.b64  	%rd105, %rd104, 15;
	setp.eq.s64 	%p3, %rd105, 0;
	setp.gt.s64 	%p4, %rd22, 15;
	and.pred  	%p5, %p4, %p3;
	@%p5 bra 	$L__BB2_10;
	bra.uni 	$L__BB2_4;
$L__BB2_10:
	ld.global.v2.u64 	{%rd226, %rd228}, [%rd224];
	bra.uni 	$L__BB2_11;
$L__BB2_4:
	setp.lt.s64 	%p6, %rd22, 1;
	mov.u64 	%rd228, 0;
	mov.u64 	%rd226, %rd228;
	@%p6 bra 	$L__BB2_7;
	mov.u64 	%rd223, 0;
	mov.u64 	%rd222, 1;
	mov.u64 	%rd226, %rd223;
$L__BB2_6:
	.pragma "nounroll";
	ld.global.u8 	%rd110, [%rd224];
	cvt.u32.u64 	%r15, %rd223;
	shl.b64 	%rd111, %rd110, %r15;
	or.b64  	%rd226, %rd111, %rd226;
	cvt.u32.u64 	%r16, %rd222;
	setp.lt.u32 	%p7, %r16, 8;
	setp.gt.s64 	%p8, %rd22, %rd222;
	and.pred  	%p9, %p7, %p8;
	add.s64 	%rd224, %rd224, 1;
	add.s64 	%rd223, %rd223, 8;
	add.s64 	%rd222, %rd222, 1;
	@%p9 bra 	$L__BB2_6;
$L__BB2_7:
	setp.lt.s64 	%p10, %rd22, 9;
	@%p10 bra 	$L__BB2_11;
	add.s64 	%rd32, %rd22, -8;
	mov.u64 	%rd228, 0;
	mov.u32 	%r53, 0;
$L__BB2_9:
	.pragma "nounroll";
	mul.wide.u32 	%rd206, %r14, 8;
	shl.b64 	%rd205, %rd217, 12;
	add.s64 	%rd204, %rd205, %rd206;
	add.s64 	%rd203, %rd204, 8;
	mul.lo.s64 	%rd202, %rd210, 24;
	add.s64 	%rd201, %rd76, %rd202;
	ld.param.u64 	%rd200, [%rd201];
	cvta.to.global.u64 	%rd199, %rd200;
	cvt.s64.s32 	%rd114, %r53;
	add.s64 	%rd115, %rd203, %rd114;
	add.s64 	%rd117, %rd199, %rd115;
	ld.global.u8 	%rd118, [%rd117];
	shl.b32 	%r18, %r53, 3;
	shl.b64 	%rd119, %rd118, %r18;
	or.b64  	%rd228, %rd119, %rd228;
	add.s32 	%r53, %r53, 1;
	setp.lt.u32 	%p11, %r53, 8;
	cvt.u64.u32 	%rd120, %r53;
	setp.gt.s64 	%p12, %rd32, %rd120;
	and.pred  	%p13, %p11, %p12;
	@%p13 bra 	$L__BB2_9;
$L__BB2_11:
	mul.lo.s64 	%rd188, %rd210, 24;
	add.s64 	%rd187, %rd76, %rd188;
	ld.param.u64 	%rd186, [%rd187+16];
	add.s64 	%rd123, %rd217, %rd186;
	mul.lo.s64 	%rd124, %rd123, -7046029254386353131;
	add.s64 	%rd125, %rd124, -7046029254386353131;
	shr.u64 	%rd126, %rd125, 30;
	xor.b64  	%rd127, %rd126, %rd125;
	mul.lo.s64 	%rd128, %rd127, -4658895280553007687;
	shr.u64 	%rd129, %rd128, 27;
	xor.b64  	%rd130, %rd129, %rd128;
	mul.lo.s64 	%rd131, %rd130, -7723592293110705685;
	shr.u64 	%rd132, %rd131, 31;
	xor.b64  	%rd133, %rd132, %rd131;
	or.b64  	%rd134, %rd133, 1;
	add.s64 	%rd135, %rd226, %rd228;
	mul.lo.s64 	%rd136, %rd135, %rd134;
	add.s64 	%rd232, %rd136, %rd232;
	shr.s64 	%rd137, %rd226, 32;
	shr.s64 	%rd138, %rd228, 32;
	add.s64 	%rd139, %rd137, %rd138;
	mul.lo.s64 	%rd140, %rd139, %rd134;
	add.s64 	%rd231, %rd140, %rd231;
	add.s64 	%rd235, %rd226, %rd235;
	add.s64 	%rd236, %rd228, %rd236;
	add.s64 	%rd233, %rd137, %rd233;
	add.s64 	%rd234, %rd138, %rd234;
	cvt.u64.u32 	%rd141, %r11;
	add.s64 	%rd217, %rd217, %rd141;
	setp.lt.u64 	%p14, %rd217, %rd97;
	@%p14 bra 	$L__BB2_3;
$L__BB2_12:
	add.s64 	%rd209, %rd97, %rd209;
	add.s64 	%rd210, %rd210, 1;
	setp.lt.u64 	%p15, %rd210, %rd77;
	@%p15 bra 	$L__BB2_2;
$L__BB2_13:
	mov.u32 	%r21, %tid.x;
	shl.b32 	%r22, %r21, 1;
	cvt.u64.u32 	%rd146, %r22;
	mul.lo.s64 	%rd147, %rd146, -7046029254386353131;
	add.s64 	%rd148, %rd147, -7046029254386353131;
	shr.u64 	%rd149, %rd148, 30;
	xor.b64  	%rd150, %rd149, %rd148;
	mul.lo.s64 	%rd151, %rd150, -4658895280553007687;
	shr.u64 	%rd152, %rd151, 27;
	xor.b64  	%rd153, %rd152, %rd151;
	mul.lo.s64 	%rd154, %rd153, -7723592293110705685;
	shr.u64 	%rd155, %rd154, 31;
	xor.b64  	%rd156, %rd155, %rd154;
	or.b64  	%rd157, %rd156, 1;
	mul.lo.s64 	%rd158, %rd235, %rd157;
	add.s64 	%rd159, %rd147, 4354685564936845354;
	shr.u64 	%rd160, %rd159, 30;
	xor.b64  	%rd161, %rd160, %rd159;
	mul.lo.s64 	%rd162, %rd161, -4658895280553007687;
	shr.u64 	%rd163, %rd162, 27;
	xor.b64  	%rd164, %rd163, %rd162;
	mul.lo.s64 	%rd165, %rd164, -7723592293110705685;
	shr.u64 	%rd166, %rd165, 31;
	xor.b64  	%rd167, %rd166, %rd165;
	or.b64  	%rd168, %rd167, 1;
	mul.lo.s64 	%rd169, %rd236, %rd168;
	add.s64 	%rd244, %rd169, %rd158;
	mul.lo.s64 	%rd170, %rd233, %rd157;
	mul.lo.s64 	%rd171, %rd234, %rd168;
	add.s64 	%rd243, %rd171, %rd170;
	mov.u32 	%r54, 16;
$L__BB2_14:
	.pragma "nounroll";
	mov.b64 {%r23,%r24}, %rd232;
	mov.u32 	%r39, 31;
	mov.u32 	%r40, -1;
	shfl.sync.down.b32 	%r26|%p16, %r24, %r54, %r39, %r40;
	shfl.sync.down.b32 	%r25|%p17, %r23, %r54, %r39, %r40;
	mov.b64 %rd173, {%r25,%r26};
	add.s64 	%rd232, %rd232, %rd173;
	mov.b64 {%r27,%r28}, %rd231;
	shfl.sync.down.b32 	%r30|%p18, %r28, %r54, %r39, %r40;
	shfl.sync.down.b32 	%r29|%p19, %r27, %r54, %r39, %r40;
	mov.b64 %rd175, {%r29,%r30};
	add.s64 	%rd231, %rd231, %rd175;
	mov.b64 {%r31,%r32}, %rd244;
	shfl.sync.down.b32 	%r34|%p20, %r32, %r54, %r39, %r40;
	shfl.sync.down.b32 	%r33|%p21, %r31, %r54, %r39, %r40;
	mov.b64 %rd177, {%r33,%r34};
	add.s64 	%rd244, %rd244, %rd177;
	mov.b64 {%r35,%r36}, %rd243;
	shfl.sync.down.b32 	%r38|%p22, %r36, %r54, %r39, %r40;
	shfl.sync.down.b32 	%r37|%p23, %r35, %r54, %r39, %r40;
	mov.b64 %rd179, {%r37,%r38};
	add.s64 	%rd243, %rd243, %rd179;
	shr.u32 	%r54, %r54, 1;
	setp.ne.s32 	%p24, %r54, 0;
	@%p24 bra 	$L__BB2_14;
	and.b32  	%r42, %r21, 31;
	setp.ne.s32 	%p25, %r42, 0;
	@%p25 bra 	$L__BB2_17;
	and.b32  	%r44, %r21, -32;
	mov.u32 	%r45, _ZZ15penstock_digestE8of_warps;
	add.s32 	%r46, %r45, %r44;
	st.shared.u64 	[%r46], %rd232;
	st.shared.u64 	[%r46+8], %rd231;
	st.shared.u64 	[%r46+16], %rd244;
	st.shared.u64 	[%r46+24], %rd243;
$L__BB2_17:
	bar.sync 	0;
	setp.gt.u32 	%p26, %r21, 3;
	@%p26 bra 	$L__BB2_21;
	shl.b32 	%r50, %r21, 3;
	mov.u32 	%r51, _ZZ15penstock_digestE8of_warps;
	add.s32 	%r55, %r51, %r50;
	mov.u64 	%rd247, 0;
	mov.u32 	%r56, 0;
$L__BB2_19:
	.pragma "nounroll";
	ld.shared.u64 	%rd181, [%r55];
	add.s64 	%rd247, %rd181, %rd247;
	add.s32 	%r55, %r55, 32;
	add.s32 	%r56, %r56, 1;
	setp.ne.s32 	%p27, %r56, 8;
	@%p27 bra 	$L__BB2_19;
	ld.param.u64 	%rd189, [penstock_digest_param_2];
	cvta.to.global.u64 	%rd182, %rd189;
	mul.wide.u32 	%rd183, %r21, 8;
	add.s64 	%rd184, %rd182, %rd183;
	atom.global.add.u64 	%rd185, [%rd184], %rd247;
$L__BB2_21:
	ret;
}
)ptx";

}  // namespace penstock::device
