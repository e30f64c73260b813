// Weighted sums of rows, for the product of a sparse matrix (CSR) with a tensor whose rows are long; weighted norms and
// sums of the rows of a batch; and whether all numbers of a row or column are finite.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "lanes.h"

namespace {

// A vector of N numbers; for N = 1 a plain number.
template <typename T, int N> struct Few { typedef T vec __attribute__((vector_size(N * sizeof(T)))); };
template <typename T> struct Few<T, 1> { typedef T vec; };

// Add up COUNT vectors of a row of y, in registers, over the sources of the row. `put(number, sum)` says how a sum
// goes into y. Vector types are used explicitly: with plain arrays compilers keep the sums in memory, which takes
// three times as long.
template <int COUNT, typename V, typename T, typename Put>
inline void sum_vectors(int64_t length, int64_t begin, int64_t end, const int64_t* source, const T* weight, const T* x,
                        T* out, Put put) {
  constexpr int64_t WIDTH = sizeof(V) / sizeof(T);
  V sum[COUNT] = {};
  for (int64_t k = begin; k < end; ++k) {
    const T* in = x + source[k] * length;
    for (int i = 0; i < COUNT; ++i) {
      V read;
      std::memcpy(&read, in + i * WIDTH, sizeof read);
      sum[i] += weight[k] * read;
    }
  }
  for (int i = 0; i < COUNT; ++i) {
    V written;
    std::memcpy(&written, out + i * WIDTH, sizeof written);
    put(written, sum[i]);
    std::memcpy(out + i * WIDTH, &written, sizeof written);
  }
}

// The same for the last numbers of a row, `left` < 2 N: in vectors of N, N / 2, ... numbers, as far as there are so
// many.
template <int N, typename T, typename Put>
inline void sum_rest(int64_t left, int64_t length, int64_t begin, int64_t end, const int64_t* source, const T* weight,
                     const T* x, T* out, Put put) {
  if (!left) return;
  const int64_t taken = left & N;
  if (taken) sum_vectors<1, typename Few<T, N>::vec>(length, begin, end, source, weight, x, out, put);
  if constexpr (N > 1)
    sum_rest<N / 2>(left - taken, length, begin, end, source, weight, x + taken, out + taken, put);
}

// The same for a whole row of y, which is contiguous.
template <typename T, typename Put>
inline void sum_row(int64_t length, int64_t begin, int64_t end, const int64_t* source, const T* weight, const T* x,
                    T* y, Put put) {
  constexpr int64_t WIDTH = VECTOR_BYTES / sizeof(T), MANY = 4 * WIDTH;
  int64_t at = 0;
  for (; at + MANY <= length; at += MANY)
    sum_vectors<4, Vec<T>>(length, begin, end, source, weight, x + at, y + at, put);
  for (; at + WIDTH <= length; at += WIDTH)
    sum_vectors<1, Vec<T>>(length, begin, end, source, weight, x + at, y + at, put);
  sum_rest<WIDTH / 2>(length - at, length, begin, end, source, weight, x + at, y + at, put);
}

template <typename T>
void weighted_sums(int64_t length, const int64_t* start, const int64_t* source, const T* weight, const T* x, T* y,
                   int64_t first, int64_t last) {
  const auto put = [](auto& out, auto sum) { out = sum; };
  if (length == 1) {  // takes a third of the time if the compiler knows the length
    for (int64_t row = first; row < last; ++row)
      sum_vectors<1, T>(1, start[row], start[row + 1], source, weight, x, y + row, put);
    return;
  }
  for (int64_t row = first; row < last; ++row)
    sum_row(length, start[row], start[row + 1], source, weight, x, y + row * length, put);
}

// Subtract from y[row[k]] gain[row[k] * by_row] times the weighted sum of the sources from start[k] to start[k + 1].
template <typename T>
void subtract_sums(int64_t length, const int64_t* row, const int64_t* start, const int64_t* source, const T* weight,
                   const T* gain, int64_t by_row, const T* x, T* y, int64_t first, int64_t last) {
  for (int64_t k = first; k < last; ++k) {
    const T by = gain[row[k] * by_row];
    const auto put = [by](auto& out, auto sum) { out -= by * sum; };
    if (length == 1)
      sum_vectors<1, T>(1, start[k], start[k + 1], source, weight, x, y + row[k], put);
    else
      sum_row(length, start[k], start[k + 1], source, weight, x, y + row[k] * length, put);
  }
}

// Number of partial sums of a row, so that no addition waits for the one before; and of a short row, such as a vector in
// space.
constexpr int64_t LANES = 32, FEW = 4;

template <int64_t LANES, typename T, typename F>
inline T sum_in_lanes(int64_t length, F number) {
  T sum[LANES] = {};
  const int64_t whole = length - length % LANES;
  for (int64_t i = 0; i < whole; i += LANES)
    for (int64_t k = 0; k < LANES; ++k) sum[k] += number(i + k);
  for (int64_t i = whole; i < length; ++i) sum[i - whole] += number(i);
  for (int64_t half = LANES / 2; half; half /= 2)
    for (int64_t k = 0; k < half; ++k) sum[k] += sum[k + half];
  return sum[0];
}

template <typename T, typename F>
inline T sum_of(int64_t length, F number) {
  return length > FEW ? sum_in_lanes<LANES, T>(length, number) : sum_in_lanes<FEW, T>(length, number);
}

// norm[row]: Euclidean norm of a row of x (rows, length), each number multiplied by its weight (length).
template <typename T>
void weighted_norms(int64_t length, const T* weight, const T* x, T* norm, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const T* at = x + row * length;
    norm[row] = std::sqrt(sum_of<T>(length, [=](int64_t i) { return (at[i] * weight[i]) * (at[i] * weight[i]); }));
  }
}

// total[row]: sum of a row of x (rows, length).
template <typename T>
void totals(int64_t length, const T* x, T* total, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const T* at = x + row * length;
    total[row] = sum_of<T>(length, [=](int64_t i) { return at[i]; });
  }
}

// A tensor (rows, length).
template <typename T>
struct Rows {
  const T* at;
  int64_t length;
};

// finite[row]: whether all numbers of that row of all tensors are finite; these times zero are zero, others give NaN.
template <typename T>
void finite_rows(int64_t count, const Rows<T>* tensors, bool* finite, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    T sum = 0;
    for (int64_t k = 0; k < count; ++k) {
      const T* at = tensors[k].at + row * tensors[k].length;
      sum += sum_of<T>(tensors[k].length, [=](int64_t i) { return at[i] * T(0); });
    }
    finite[row] = sum == T(0);
  }
}

// finite[column]: whether all numbers of that column of x (rows, columns) are finite.
template <typename T>
void finite_columns(int64_t rows, int64_t columns, const T* x, bool* finite, int64_t first, int64_t last) {
  for (int64_t at = first; at < last; at += LANES) {
    const int64_t count = last - at < LANES ? last - at : LANES;
    T sum[LANES] = {};
    for (int64_t row = 0; row < rows; ++row) {
      const T* in = x + row * columns + at;
      if (count == LANES)
        for (int64_t k = 0; k < LANES; ++k) sum[k] += in[k] * T(0);
      else
        for (int64_t k = 0; k < count; ++k) sum[k] += in[k] * T(0);
    }
    for (int64_t k = 0; k < count; ++k) finite[at + k] = sum[k] == T(0);
  }
}

}  // namespace

#define INTERFACE(T, suffix)                                                                                          \
  void weighted_sums_##suffix(int64_t length, const int64_t* start, const int64_t* source, const T* weight,           \
                              const T* x, T* y, int64_t first, int64_t last) {                                        \
    weighted_sums<T>(length, start, source, weight, x, y, first, last);                                               \
  }                                                                                                                   \
  void subtract_sums_##suffix(int64_t length, const int64_t* row, const int64_t* start, const int64_t* source,        \
                              const T* weight, const T* gain, int64_t by_row, const T* x, T* y, int64_t first,        \
                              int64_t last) {                                                                         \
    subtract_sums<T>(length, row, start, source, weight, gain, by_row, x, y, first, last);                            \
  }                                                                                                                   \
  void weighted_norms_##suffix(int64_t length, const T* weight, const T* x, T* norm, int64_t first, int64_t last) {   \
    weighted_norms<T>(length, weight, x, norm, first, last);                                                          \
  }                                                                                                                   \
  void totals_##suffix(int64_t length, const T* x, T* total, int64_t first, int64_t last) {                           \
    totals<T>(length, x, total, first, last);                                                                         \
  }                                                                                                                   \
  void finite_rows_##suffix(int64_t count, const Rows<T>* tensors, bool* finite, int64_t first, int64_t last) {       \
    finite_rows<T>(count, tensors, finite, first, last);                                                              \
  }                                                                                                                   \
  void finite_columns_##suffix(int64_t rows, int64_t columns, const T* x, bool* finite, int64_t first,                \
                               int64_t last) {                                                                        \
    finite_columns<T>(rows, columns, x, finite, first, last);                                                         \
  }

extern "C" {
INTERFACE(double, float64)
INTERFACE(float, float32)
}
