// The kernels that copy the segments of a scatter. The build does not compile this file: run tools/make_scatter after changing it.
//
// blockIdx.x selects segments, and blockIdx.y splits one segment among several blocks, so that both a few large segments and many small
// ones are spread over the GPU. Source and target may be device memory or pinned host memory.

struct segment {  // device::segment
  const unsigned char* source;
  unsigned char* target;
  unsigned long long bytes;
};

// The thread's first word in a segment and the distance between its words.
struct lane {
  unsigned long long first;
  unsigned long long step;
};

__device__ void copy_bytes(const segment& piece, unsigned long long from, unsigned long long to, lane self) {
  for (unsigned long long i = from + self.first; i < to; i += self.step) piece.target[i] = piece.source[i];
}

// Requires source and target to be congruent modulo sizeof(Word). Copies bytes up to the first whole word of the target, then words, then
// the remaining bytes.
template <class Word>
__device__ void copy_words(const segment& piece, lane self) {
  unsigned long long head = (0ull - reinterpret_cast<unsigned long long>(piece.target)) % sizeof(Word);
  if (head > piece.bytes) head = piece.bytes;
  const unsigned long long words = (piece.bytes - head) / sizeof(Word);
  const Word* source = reinterpret_cast<const Word*>(piece.source + head);
  Word* target = reinterpret_cast<Word*>(piece.target + head);
  copy_bytes(piece, 0, head, self);
  for (unsigned long long i = self.first; i < words; i += self.step) target[i] = source[i];
  copy_bytes(piece, head + words * sizeof(Word), piece.bytes, self);
}

// For a source and target that differ modulo 4. Builds each word of the target from two adjacent words of the source. Only words entirely
// inside the segment are read, so the head and tail are longer.
__device__ void copy_shifted(const segment& piece, lane self) {
  unsigned long long head = (0ull - reinterpret_cast<unsigned long long>(piece.target)) % 4;
  const unsigned offset = (reinterpret_cast<unsigned long long>(piece.source) + head) % 4;  // 1, 2 or 3
  if (head < offset) head += 4;
  const unsigned long long words = piece.bytes < head + 8 ? 0 : (piece.bytes - head - 4) / 4;
  if (words == 0) head = 0;
  const unsigned* source = reinterpret_cast<const unsigned*>(piece.source + head - (words == 0 ? 0 : offset));
  unsigned* target = reinterpret_cast<unsigned*>(piece.target + head);
  copy_bytes(piece, 0, head, self);
  for (unsigned long long i = self.first; i < words; i += self.step) target[i] = __funnelshift_r(source[i], source[i + 1], offset * 8);
  copy_bytes(piece, head + words * 4, piece.bytes, self);
}

// Copies this thread's part of each segment that its block selects.
__device__ void run(const segment* table, unsigned long long count) {
  const lane self = {static_cast<unsigned long long>(blockIdx.y) * blockDim.x + threadIdx.x,
                     static_cast<unsigned long long>(gridDim.y) * blockDim.x};
  for (unsigned long long index = blockIdx.x; index < count; index += gridDim.x) {
    const segment piece = table[index];
    const unsigned long long difference =
        reinterpret_cast<unsigned long long>(piece.source) ^ reinterpret_cast<unsigned long long>(piece.target);
    if (difference % 16 == 0) {
      copy_words<uint4>(piece, self);
    } else if (difference % 4 == 0) {
      copy_words<unsigned>(piece, self);
    } else {
      copy_shifted(piece, self);
    }
  }
}

struct short_table {
  segment of[128];  // device::session::short_table
};

extern "C" __global__ void penstock_scatter(const segment* table, unsigned long long count) { run(table, count); }

// The table is passed as a kernel argument.
extern "C" __global__ void penstock_scatter_short(const __grid_constant__ short_table table, unsigned long long count) { run(table.of, count); }
