// Weighted sums of rows, for the product of a sparse matrix (CSR) with a tensor whose rows are long.

#include <cstdint>

namespace {

// y[row, at : at + BLOCK]: numbers that stay in registers while the sources of the row are added.
template <int64_t BLOCK, typename T>
inline void sum_block(int64_t length, int64_t begin, int64_t end, const int64_t* source, const T* weight, const T* x,
                      T* out) {
  T sum[BLOCK] = {};
  for (int64_t k = begin; k < end; ++k) {
    const T* in = x + source[k] * length;
    const T w = weight[k];
    for (int64_t i = 0; i < BLOCK; ++i) sum[i] += w * in[i];
  }
  for (int64_t i = 0; i < BLOCK; ++i) out[i] = sum[i];
}

template <typename T>
void weighted_sums(int64_t length, const int64_t* start, const int64_t* source, const T* weight, const T* x, T* y,
                   int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    T* out = y + row * length;
    const int64_t begin = start[row], end = start[row + 1];
    int64_t at = 0;
    for (; at + 32 <= length; at += 32) sum_block<32>(length, begin, end, source, weight, x + at, out + at);
    for (; at + 8 <= length; at += 8) sum_block<8>(length, begin, end, source, weight, x + at, out + at);
    for (; at < length; ++at) sum_block<1>(length, begin, end, source, weight, x + at, out + at);
  }
}

}  // namespace

#define INTERFACE(T, suffix)                                                                                          \
  void weighted_sums_##suffix(int64_t length, const int64_t* start, const int64_t* source, const T* weight,           \
                              const T* x, T* y, int64_t first, int64_t last) {                                        \
    weighted_sums<T>(length, start, source, weight, x, y, first, last);                                               \
  }

extern "C" {
INTERFACE(double, float64)
INTERFACE(float, float32)
}
