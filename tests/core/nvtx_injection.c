// An NVTX tool, loaded by a program whose NVTX_INJECTION64_PATH names it. Writes each domain range to the file named by
// PENSTOCK_TEST_RANGES, one line at its beginning and one at its end.
#include <nvtx3/nvToolsExt.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static atomic_ullong ranges;

static void write_line(const char* what, unsigned long long number, const char* text) {
  FILE* out = fopen(getenv("PENSTOCK_TEST_RANGES"), "a");
  if (out == NULL) return;
  fprintf(out, "%s %llu %s\n", what, number, text);
  fclose(out);
}

static nvtxDomainHandle_t NVTX_API make_domain(const char* name) {
  write_line("domain", 0, name);
  return (nvtxDomainHandle_t)&ranges;
}

static nvtxRangeId_t NVTX_API start_range(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* about) {
  const unsigned long long number = atomic_fetch_add(&ranges, 1) + 1;
  (void)domain;
  write_line("begin", number, about->message.ascii);
  return number;
}

static void NVTX_API end_range(nvtxDomainHandle_t domain, nvtxRangeId_t range) {
  (void)domain;
  write_line("end", range, "");
}

static void set(NvtxFunctionTable table, unsigned size, int function, NvtxFunctionPointer to) {
  if ((unsigned)function < size) *table[function] = to;
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const NvtxExportTableCallbacks* callbacks = get_table(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = NULL;
  unsigned size = 0;
  if (callbacks == NULL || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  set(table, size, NVTX_CBID_CORE2_DomainCreateA, (NvtxFunctionPointer)make_domain);
  set(table, size, NVTX_CBID_CORE2_DomainRangeStartEx, (NvtxFunctionPointer)start_range);
  set(table, size, NVTX_CBID_CORE2_DomainRangeEnd, (NvtxFunctionPointer)end_range);
  return 1;
}
