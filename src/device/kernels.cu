// The kernels that copy the segments of a scatter, and the one that adds to a digest. The build does not compile this file: run
// tools/make_kernels after changing it.
//
// In a scatter, blockIdx.x selects segments, and blockIdx.y splits one segment among several blocks, so that both a few large segments and
// many small ones are spread over the GPU. Source and target may be device memory or pinned host memory.

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

struct digest_part {  // detail::digest_part
  const unsigned char* memory;
  unsigned long long bytes;
  unsigned long long first_row;
};

struct digest_table {
  digest_part of[128];  // most_digest_parts
};

// m(i) in the definition of the digest.
__device__ unsigned long long factor(unsigned long long i) {
  unsigned long long found = (i + 1) * 0x9E3779B97F4A7C15ull;
  found = (found ^ (found >> 30)) * 0xBF58476D1CE4E5B9ull;
  found = (found ^ (found >> 27)) * 0x94D049BB133111EBull;
  return (found ^ (found >> 31)) | 1;
}

__device__ unsigned long long upper_half(unsigned long long word) { return static_cast<unsigned long long>(static_cast<long long>(word) >> 32); }

// Returns a word with zeros in place of the bytes after the end. left: number of bytes before the end; negative after it.
__device__ unsigned long long word_at(const unsigned char* memory, long long left) {
  unsigned long long word = 0;
#pragma unroll 1
  for (int i = 0; i < 8 && i < left; ++i) word |= static_cast<unsigned long long>(memory[i]) << i * 8;
  return word;
}

__device__ ulonglong2 words_at(const unsigned char* memory, long long left) {
  if (reinterpret_cast<unsigned long long>(memory) % 16 == 0 && left >= 16) return *reinterpret_cast<const ulonglong2*>(memory);
  return {word_at(memory, left), word_at(memory + 8, left - 8)};
}

// The blocks take the rows of all parts in turn, and each of the 256 threads of a block adds two words of a row. gridDim.x must be a power
// of two.
extern "C" __global__ void __launch_bounds__(256)
    penstock_digest(const __grid_constant__ digest_table table, unsigned long long count, unsigned long long* sums) {
  const unsigned long long column = threadIdx.x * 2;
  unsigned long long found[4] = {0, 0, 0, 0};
  unsigned long long words[2] = {0, 0};   // sums of this thread's columns
  unsigned long long halves[2] = {0, 0};  // sums of the upper halves
  unsigned long long row_offset = 0;      // rows of the parts before this one
  for (unsigned long long i = 0; i < count; ++i) {
    const digest_part part = table.of[i];
    const unsigned long long rows = (part.bytes + 4095) / 4096;
    for (unsigned long long row = (blockIdx.x - row_offset) & (gridDim.x - 1); row < rows; row += gridDim.x) {
      const unsigned long long offset = row * 4096 + column * 8;
      const ulonglong2 pair = words_at(part.memory + offset, static_cast<long long>(part.bytes - offset));
      const unsigned long long of_row = factor(part.first_row + row);
      found[0] += of_row * (pair.x + pair.y);
      found[1] += of_row * (upper_half(pair.x) + upper_half(pair.y));
      words[0] += pair.x;
      words[1] += pair.y;
      halves[0] += upper_half(pair.x);
      halves[1] += upper_half(pair.y);
    }
    row_offset += rows;
  }
  found[2] = factor(column) * words[0] + factor(column + 1) * words[1];
  found[3] = factor(column) * halves[0] + factor(column + 1) * halves[1];

  __shared__ unsigned long long of_warps[8][4];
#pragma unroll 1
  for (unsigned distance = 16; distance != 0; distance /= 2) {
    for (unsigned i = 0; i < 4; ++i) found[i] += __shfl_down_sync(0xffffffffu, found[i], distance);
  }
  if (threadIdx.x % 32 == 0) {
    for (unsigned i = 0; i < 4; ++i) of_warps[threadIdx.x / 32][i] = found[i];
  }
  __syncthreads();
  if (threadIdx.x >= 4) return;
  unsigned long long total = 0;
#pragma unroll 1
  for (unsigned i = 0; i < 8; ++i) total += of_warps[i][threadIdx.x];
  atomicAdd(sums + threadIdx.x, total);
}
