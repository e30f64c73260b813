// Banded factors of many matrices at once, one matrix in each lane of a vector.
//
// A = M E U: M holds the reduced columns below the diagonal, U the reduced rows right of it, E the inverses of the
// pivots. No rows are exchanged. A symmetric matrix has U = M^T, and one half is stored: the function that factors
// takes the same memory for both.
//
// A half-band with reach k holds n lines of k + 1 numbers: the diagonal (after the elimination the inverse pivot), then
// the entries below it (M) or right of it (U). So entry (i, p), i >= p, is number p * k + i. A number is a vector with
// one lane for each matrix of a group; a group holds its half M, then, unless symmetric, its half U.
//
// Bands are stored as wide as their widest line. A `Profile` says how far each pivot actually reaches: numbers beyond
// are zero, and skipped.

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "lanes.h"

namespace {

// Groups that are filled together, so that a row of values is read a few cache lines at a time.
constexpr int64_t GROUPS_AT_ONCE = 4;
// Columns that are reduced together, and the number of their rows that are held in registers.
constexpr int PANEL = 4;
constexpr int ROWS = 4;

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Number, size and bandwidths of the matrices. `upper` is -1 for symmetric ones.
struct Shape {
  int64_t batch, n, lower, upper;
  bool symmetric() const { return upper < 0; }
  int64_t numbers() const { return n * (lower + 1 + (symmetric() ? 0 : upper + 1)); }
  int64_t offset() const { return symmetric() ? 0 : n * (lower + 1); }
  int64_t reach() const { return symmetric() ? lower : upper; }
};

// Pivot p reaches the lines up to last[p], and line i is reached by the pivots from begin[i] on; both increase.
struct Profile {
  const int64_t *begin, *last;
};

template <typename V> struct Half {
  V* at;
  int64_t reach;
  const int64_t* last;
  int64_t end(int64_t p) const { return smaller(p + reach, last[p]) + 1; }
  V& entry(int64_t i, int64_t p) const { return at[p * reach + i]; }
};

// Reduce rows [i, i + R) of columns [c, c + C) by the pivots [begin, c); factors[p - first][column] multiplies the
// column of pivot p. Of a diagonal tile (i = c) only the lower triangle is stored.
template <int R, int C, bool diagonal, typename V>
inline void reduce_tile(const Half<V>& half, const V* factors, int64_t first, int64_t begin, int64_t c, int64_t i) {
  V sum[R][C] = {};
  // the columns of the first few pivots end within the tile
#pragma GCC unroll 4
  for (int h = 0; h < R - 1; ++h) {
    const int64_t p = i - half.reach + h;
    if (p >= begin)
      for (int r = 0; r <= h; ++r)
        for (int k = 0; k < C; ++k) sum[r][k] += half.entry(i + r, p) * factors[(p - first) * C + k];
  }
  for (int64_t p = larger(begin, i + R - 1 - half.reach); p < c; ++p) {
    const V* column = &half.entry(i, p);
    const V* by = factors + (p - first) * C;
    for (int r = 0; r < R; ++r)
      for (int k = 0; k < C; ++k) sum[r][k] += column[r] * by[k];
  }
  for (int r = 0; r < R; ++r)
    for (int k = 0; k < C; ++k)
      if (!diagonal || r >= k) half.entry(i + r, c + k) -= sum[r][k];
}

// Reduce columns [c, c + C) of a half by all pivots before c, with factors from the other half. Needs reach >= C
// unless C is 1, and c + C <= n.
template <int C, typename V>
inline void reduce_panel(const Half<V>& half, const Half<V>& other, const int64_t* begin, int64_t c, V* factors) {
  const int64_t first = larger(begin[c], c - smaller(half.reach, other.reach));
  if (first >= c) return;
  for (int64_t p = first; p < c; ++p) {
    const V inverse = other.entry(p, p);
    for (int k = 0; k < C; ++k)
      factors[(p - first) * C + k] = c + k - p <= other.reach ? other.entry(c + k, p) * inverse : V{};
  }
  int64_t i = c;
  const auto from = [&] { return larger(first, begin[i]); };
  if (C > 1) {
    reduce_tile<C, C, true>(half, factors, first, first, c, i);
    i += C;
  }
  const int64_t end = half.end(c - 1);  // pivots before c reach no rows from here on
  for (; i + ROWS <= end; i += ROWS) reduce_tile<ROWS, C, false>(half, factors, first, from(), c, i);
  for (; i < end; ++i) reduce_tile<1, C, false>(half, factors, first, from(), c, i);
}

// Reduce the columns (j, last) of a half by pivot j.
template <typename V>
inline void reduce_rest(const Half<V>& half, const Half<V>& other, int64_t j, int64_t last, V inverse) {
  const int64_t end = half.end(j);
  for (int64_t c = j + 1; c < last && c - j <= other.reach; ++c) {
    const V by = other.entry(c, j) * inverse;
    for (int64_t i = c; i < end; ++i) half.entry(i, c) -= half.entry(i, j) * by;
  }
}

template <typename V> inline V larger(V a, V b) { return a > b ? a : b; }
template <typename V> inline V size_of(V v) { return v < 0 ? -v : v; }

template <typename V> inline V largest(const Half<V>& half, int64_t j) {
  V most = {};
  const int64_t end = half.end(j);
  for (int64_t i = j; i < end; ++i) most = larger(most, size_of(half.entry(i, j)));
  return most;
}

// The lanes of a symmetric factor in which no term of the elimination is larger than `limit`; a term is a product of a
// column of M, the inverse of its pivot, and the same column as a row of U.
template <typename T> inline auto small_terms(const Half<Vec<T>>& factor, int64_t n, Vec<T> limit) {
  auto small = limit <= std::numeric_limits<T>::max();
  for (int64_t j = 0; j < n; ++j) {
    const Vec<T> inverse = factor.entry(j, j);
    Vec<T> most = size_of(T(1) / inverse);
    const int64_t end = factor.end(j);
    for (int64_t i = j + 1; i < end; ++i) most = larger(most, size_of(factor.entry(i, j)));
    small &= most * size_of(inverse) * most <= limit;  // false for NaN
  }
  return small;
}

// Factor one group in place. Lanes are `definite` if their matrix is symmetric and all pivots are positive. They are
// `good` if they are definite, or if no term of their elimination was larger than `limit`.
template <typename T>
void factor_group(const Shape& shape, const Profile& profile, Vec<T>* band, Vec<T> limit, Vec<T>* factors, bool* good,
                  bool* definite, int64_t lanes) {
  typedef Vec<T> V;
  const int64_t n = shape.n;
  const Half<V> lower = {band, shape.lower, profile.last}, upper = {band + shape.offset(), shape.reach(), profile.last};
  auto sound = V{} == V{};
  const bool panels = lower.reach >= PANEL && upper.reach >= PANEL;
  for (int64_t c = 0, width; c < n; c += width) {
    width = panels && c + PANEL <= n ? PANEL : 1;
    if (width == PANEL) {
      reduce_panel<PANEL>(lower, upper, profile.begin, c, factors);
      if (!shape.symmetric()) reduce_panel<PANEL>(upper, lower, profile.begin, c, factors);
    } else {
      reduce_panel<1>(lower, upper, profile.begin, c, factors);
      if (!shape.symmetric()) reduce_panel<1>(upper, lower, profile.begin, c, factors);
    }
    for (int64_t j = c; j < c + width; ++j) {
      const V inverse = T(1) / lower.entry(j, j);
      if (shape.symmetric()) {
        sound &= (inverse > 0) & (inverse <= std::numeric_limits<T>::max());
      } else {
        upper.entry(j, j) = lower.entry(j, j);
        sound &= largest(lower, j) * size_of(inverse) * largest(upper, j) <= limit;  // false for NaN
      }
      reduce_rest(lower, upper, j, c + width, inverse);
      if (!shape.symmetric()) reduce_rest(upper, lower, j, c + width, inverse);
      lower.entry(j, j) = inverse;
      upper.entry(j, j) = inverse;
    }
  }
  bool all = true;
  for (int64_t w = 0; w < lanes; ++w) {
    all &= sound[w] != 0;
    definite[w] = shape.symmetric() && sound[w] != 0;
  }
  if (shape.symmetric() && !all) sound |= small_terms<T>(lower, n, limit);
  for (int64_t w = 0; w < lanes; ++w) good[w] = sound[w] != 0;
}

// Fill place `place` of the bands of groups [first, last) from entry `source` of values (nnz, batch), with zero for -1.
// `most[g - first]` becomes the largest absolute entry. Lanes without a matrix may hold anything: nobody reads them.
template <typename T>
inline void fill_place(const Shape& shape, const T* values, int64_t nnz, int64_t source, int64_t place, Vec<T>* bands,
                       Vec<T>* most, int64_t first, int64_t last) {
  typedef Vec<T> V;
  constexpr int64_t W = sizeof(V) / sizeof(T);
  const int64_t numbers = shape.numbers(), full = smaller(last, shape.batch / W), at = source * shape.batch;
  for (int64_t g = first; g < full; ++g) {
    V v = {};
    if (source >= 0) std::memcpy(&v, values + at + g * W, sizeof(V));
    bands[g * numbers + place] = v;
    most[g - first] = larger(most[g - first], size_of(v));
  }
  if (full == last) return;
  V v = {};
  if (source >= 0 && at + full * W + W <= nnz * shape.batch) {
    std::memcpy(&v, values + at + full * W, sizeof(V));  // lanes beyond the batch read numbers of the next row
  } else if (source >= 0) {
    for (int64_t w = 0; w < shape.batch - full * W; ++w) v[w] = values[at + full * W + w];
  }
  bands[full * numbers + place] = v;
  most[full - first] = larger(most[full - first], size_of(v));
}

// Fill the bands of groups [first, last): place k gets entry sources[k], or zero where that is -1. Lines are filled as
// far as tiles read, a few places beyond the reach of their pivots.
template <typename T>
void fill(const Shape& shape, const Profile& profile, const T* values, int64_t nnz, const int64_t* sources, Vec<T>* bands,
          Vec<T>* most, int64_t first, int64_t last) {
  const auto fill_half = [&](int64_t place, int64_t reach) {
    for (int64_t p = 0; p < shape.n; ++p, place += reach + 1) {
      const int64_t width = smaller(reach, profile.last[p] - p + larger(PANEL, ROWS) - 1);
      for (int64_t k = place; k <= place + width; ++k)
        fill_place<T>(shape, values, nnz, sources[k], k, bands, most, first, last);
    }
  };
  fill_half(0, shape.lower);
  if (!shape.symmetric()) fill_half(shape.offset(), shape.upper);
}

template <typename T>
void factor(const Shape& shape, const Profile& profile, const T* values, int64_t nnz, const int64_t* sources, T growth, T* numbers, bool* good,
            int64_t first, int64_t last) {
  typedef Vec<T> V;
  constexpr int64_t W = sizeof(V) / sizeof(T);
  V* bands = reinterpret_cast<V*>(numbers);
  std::vector<V> factors((larger(shape.lower, shape.reach()) + 1) * PANEL);
  for (int64_t start = first; start < last; start += GROUPS_AT_ONCE) {
    const int64_t end = smaller(start + GROUPS_AT_ONCE, last);
    V most[GROUPS_AT_ONCE] = {};
    fill<T>(shape, profile, values, nnz, sources, bands, most, start, end);
    for (int64_t g = start; g < end; ++g) {
      const int64_t lanes = smaller(shape.batch - g * W, W);
      const V limit = most[g - start] * growth;
      bool *own = good + g * W, *definite = own + shape.batch;
      factor_group<T>(shape, profile, bands + g * shape.numbers(), limit, factors.data(), own, definite, lanes);
    }
  }
}

// Solve for right-hand sides (batch, n); `order[i]` is the unknown in line i of the bands. The transpose swaps halves.
template <typename T>
void solve(const Shape& shape, const Profile& profile, const T* numbers, const int64_t* order, bool transpose, const T* rhs, T* x,
           int64_t first, int64_t last) {
  typedef Vec<T> V;
  constexpr int64_t W = sizeof(V) / sizeof(T);
  const int64_t n = shape.n;
  std::vector<V> memory(n);
  V* y = memory.data();
  for (int64_t g = first; g < last; ++g) {
    V* band = const_cast<V*>(reinterpret_cast<const V*>(numbers)) + g * shape.numbers();
    Half<V> lower = {band, shape.lower, profile.last}, upper = {band + shape.offset(), shape.reach(), profile.last};
    if (transpose) std::swap(lower, upper);
    const int64_t matrix = g * W, lanes = smaller(shape.batch - matrix, W);
    for (int64_t i = 0; i < n; ++i) {
      V v = {};
      for (int64_t w = 0; w < lanes; ++w) v[w] = rhs[(matrix + w) * n + order[i]];
      y[i] = v;
    }
    for (int64_t j = 0; j < n; ++j) {
      const V v = y[j] * lower.entry(j, j);
      const int64_t end = lower.end(j);
      for (int64_t i = j + 1; i < end; ++i) y[i] -= lower.entry(i, j) * v;
      y[j] = v;
    }
    for (int64_t j = n - 1; j >= 0; --j) {
      const int64_t end = upper.end(j);
      V even = {}, odd = {};
      int64_t i = end - 1;  // from the far end, so that the value found just before is needed last
      for (; i > j + 1; i -= 2) {
        even += upper.entry(i, j) * y[i];
        odd += upper.entry(i - 1, j) * y[i - 1];
      }
      if (i > j) even += upper.entry(i, j) * y[i];
      y[j] -= (even + odd) * upper.entry(j, j);
    }
    for (int64_t i = 0; i < n; ++i)
      for (int64_t w = 0; w < lanes; ++w) x[(matrix + w) * n + order[i]] = y[i][w];
  }
}

}  // namespace

// `profile` holds `begin` (n), then `last` (n). `good` gets which matrices are good (batch), then which are definite
// (batch).
#define INTERFACE(T, suffix)                                                                                          \
  void band_factor_##suffix(int64_t batch, int64_t n, int64_t lower, int64_t upper, const int64_t* profile,           \
                            const T* values, int64_t nnz, const int64_t* sources, const double* growth, T* numbers,   \
                            bool* good, int64_t first, int64_t last) {                                                \
    factor<T>({batch, n, lower, upper}, {profile, profile + n}, values, nnz, sources, T(*growth), numbers, good,      \
              first, last);                                                                                           \
  }                                                                                                                   \
  void band_solve_##suffix(int64_t batch, int64_t n, int64_t lower, int64_t upper, const int64_t* profile,            \
                           const T* numbers, const int64_t* order, int64_t transpose, const T* rhs, T* x,             \
                           int64_t first, int64_t last) {                                                             \
    solve<T>({batch, n, lower, upper}, {profile, profile + n}, numbers, order, transpose != 0, rhs, x, first, last);  \
  }

extern "C" {
int64_t band_vector_bytes() { return VECTOR_BYTES; }
INTERFACE(double, float64)
INTERFACE(float, float32)
}
