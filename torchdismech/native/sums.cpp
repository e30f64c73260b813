// Weighted sums of rows, for the product of a sparse matrix (CSR) with a tensor whose rows are long.

#include <cstdint>

namespace {

constexpr int64_t BLOCK = 32;  // numbers of a row that stay in registers while its sources are added

template <typename T>
void weighted_sums(int64_t length, const int64_t* start, const int64_t* source, const T* weight, const T* x, T* y,
                   int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    T* out = y + row * length;
    int64_t at = 0;
    for (; at + BLOCK <= length; at += BLOCK) {
      T sum[BLOCK] = {};
      for (int64_t k = start[row]; k < start[row + 1]; ++k) {
        const T* in = x + source[k] * length + at;
        const T w = weight[k];
        for (int64_t i = 0; i < BLOCK; ++i) sum[i] += w * in[i];
      }
      for (int64_t i = 0; i < BLOCK; ++i) out[at + i] = sum[i];
    }
    for (; at < length; ++at) {
      T sum = 0;
      for (int64_t k = start[row]; k < start[row + 1]; ++k) sum += weight[k] * x[source[k] * length + at];
      out[at] = sum;
    }
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
