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

// Groups that are factored together, so that a row of values is read a few cache lines at a time; where pivots reach
// WIDE lines, the lines in reach of several groups would not fit into the second cache.
constexpr int64_t GROUPS_AT_ONCE = 4, WIDE = 48;
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
    const V* by = factors + (p - first) * C;
    V column[R];
    for (int r = 0; r < R; ++r) column[r] = read_once<V>(&half.entry(i, p) + r);
    for (int k = 0; k < C; ++k) {
      const V factor = read_once<V>(by + k);
      for (int r = 0; r < R; ++r) sum[r][k] += column[r] * factor;
    }
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

template <typename V> inline V larger(V a, V b) { return a > b ? a : b; }
template <typename V> inline V size_of(V v) { return v < 0 ? -v : v; }

// What the pivots of a panel multiply their columns by: pivot c + s reduces column c + k with by[s][k], s < k.
template <int C, typename V> using Multipliers = V[C][C];

// Reduce the columns of the panel [c, c + C) by its own pivots in all rows behind it. With `sizes`, most[k] grows to
// the largest size in these rows of column c + k.
template <int C, bool sizes, typename V>
inline void reduce_behind(const Half<V>& half, const Multipliers<C, V>& by, int64_t c, V* most) {
  int64_t end[C];
  for (int k = 0; k < C; ++k) end[k] = half.end(c + k);
  int64_t i = c + C;
  for (; i < end[0]; ++i) {  // rows that all pivots of the panel reach
    V row[C];
    for (int k = 0; k < C; ++k) {
      row[k] = half.entry(i, c + k);
      for (int s = 0; s < k; ++s) row[k] -= row[s] * by[s][k];
      if (k) half.entry(i, c + k) = row[k];
      if (sizes) most[k] = larger(most[k], size_of(row[k]));
    }
  }
  for (int k = 1; k < C; ++k)
    for (int64_t r = i; r < end[k]; ++r) {
      V& entry = half.entry(r, c + k);
      for (int s = k - 1; s > 0 && r < end[s]; --s) entry -= half.entry(r, c + s) * by[s][k];
      if (sizes) most[k] = larger(most[k], size_of(entry));
    }
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

// The values (nnz, batch) of the matrices of one group, which takes the lanes from `lane` on.
template <typename T> class Values {
  typedef Vec<T> V;
  static constexpr int64_t W = sizeof(V) / sizeof(T);

 public:
  Values(const T* at, int64_t nnz, int64_t batch, int64_t lane)
      : at_(at + lane), batch_(batch), lanes_(smaller(W, batch - lane)),
        whole_(nnz * batch < lane + W ? 0 : (nnz * batch - lane - W) / batch + 1) {
    for (int64_t source = whole_; source < nnz; ++source)
      for (int64_t w = 0; w < lanes_; ++w) ends_[source - whole_][w] = at_[source * batch + w];
  }

  // Entry `source`, zero for -1; lanes without a matrix may hold anything. It compiles without a branch, which would be
  // mispredicted often, as places of fill are scattered over a band.
  V entry(int64_t source) const {
    const void* from = at_ + source * batch_;  // lanes beyond the batch read numbers of the next rows
    from = source < 0 ? &zero_ : from;
    from = source >= whole_ ? &ends_[source - whole_] : from;
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
  }

  int64_t lanes() const { return lanes_; }

 private:
  const T* at_;
  const int64_t batch_, lanes_, whole_;  // a vector that begins at entry `whole` would end behind the last entry
  const V zero_ = {};
  V ends_[W] = {};  // the entries from `whole` on
};

// The elimination of one group in place, panel by panel.
template <typename T> class Group {
  typedef Vec<T> V;

 public:
  Group(const Shape& shape, const Profile& profile, const T* values, int64_t nnz, const int64_t* sources, V* band,
        int64_t lane)
      : shape_(shape), profile_(profile), values_(values, nnz, shape.batch, lane), sources_(sources),
        lower_{band, shape.lower, profile.last}, upper_{band + shape.offset(), shape.reach(), profile.last} {}

  // Fill and eliminate the panel [c, c + C); all panels before it are eliminated. `factors` is room for a column of C
  // factors for each pivot that reaches a row.
  template <int C> void take(int64_t c, V* factors) {
    fill<C>(lower_, c, sources_);
    if (shape_.symmetric()) return eliminate<C, true>(c, factors);
    fill<C>(upper_, c, sources_ + shape_.offset());
    eliminate<C, false>(c, factors);
  }

  // After all panels: `definite` are the lanes of symmetric matrices with positive pivots, `good` those that are
  // definite, or that have no term of the elimination that is larger than `growth` times their largest entry.
  void judge(T growth, bool* good, bool* definite) {
    const V limit = largest_entry_ * growth;
    if (!shape_.symmetric()) sound_ &= largest_term_ <= limit;
    bool all = true;
    for (int64_t w = 0; w < values_.lanes(); ++w) {
      all &= sound_[w] != 0;
      definite[w] = shape_.symmetric() && sound_[w] != 0;
    }
    if (shape_.symmetric() && !all) sound_ |= small_terms<T>(lower_, shape_.n, limit);
    for (int64_t w = 0; w < values_.lanes(); ++w) good[w] = sound_[w] != 0;
  }

 private:
  // Fill the lines of a panel as far as tiles read, a few places beyond the reach of their pivots.
  template <int C> void fill(const Half<V>& half, int64_t c, const int64_t* sources) {
    V most = largest_entry_;
    for (int64_t p = c; p < c + C; ++p) {
      const int64_t width = smaller(half.reach, profile_.last[p] - p + larger(PANEL, ROWS) - 1);
      const int64_t* from = sources + p * half.reach + p;
      V* to = &half.entry(p, p);
      for (int64_t k = 0; k <= width; ++k) {
        const V entry = values_.entry(from[k]);
        most = larger(most, size_of(entry));
        to[k] = entry;
      }
    }
    largest_entry_ = most;
  }

  // Reduce the lines of the panel [c, c + C) by the pivots before it, then by its own.
  template <int C, bool symmetric> void eliminate(int64_t c, V* factors) {
    reduce_panel<C>(lower_, upper_, profile_.begin, c, factors);
    if (!symmetric) reduce_panel<C>(upper_, lower_, profile_.begin, c, factors);
    // the corner where the lines of the panel's pivots meet: rows of the lower half, columns of the upper half
    V low[C][C], up[C][C], inverse[C], most_below[C], most_right[C];
    for (int k = 0; k < C; ++k)
      for (int i = k; i < C; ++i) {
        low[i][k] = lower_.entry(c + i, c + k);
        if (!symmetric) up[i][k] = upper_.entry(c + i, c + k);
      }
    Multipliers<C, V> right, below;  // of the lower half's columns, and of the upper half's rows
    for (int s = 0; s < C; ++s) {
      inverse[s] = T(1) / low[s][s];
      if (symmetric) sound_ &= (inverse[s] > 0) & (inverse[s] <= std::numeric_limits<T>::max());
      most_below[s] = most_right[s] = size_of(low[s][s]);
      for (int k = s + 1; k < C; ++k) {
        right[s][k] = (symmetric ? low : up)[k][s] * inverse[s];
        below[s][k] = low[k][s] * inverse[s];
        most_below[s] = larger(most_below[s], size_of(low[k][s]));
        if (!symmetric) most_right[s] = larger(most_right[s], size_of(up[k][s]));
      }
      for (int k = s + 1; k < C; ++k)
        for (int i = k; i < C; ++i) {
          low[i][k] -= low[i][s] * right[s][k];
          if (!symmetric && i > k) up[i][k] -= up[i][s] * below[s][k];
        }
    }
    for (int k = 0; k < C; ++k)
      for (int i = k; i < C; ++i) {
        lower_.entry(c + i, c + k) = i == k ? inverse[k] : low[i][k];
        if (!symmetric) upper_.entry(c + i, c + k) = i == k ? inverse[k] : up[i][k];
      }
    reduce_behind<C, !symmetric>(lower_, right, c, most_below);
    if (symmetric) return;
    reduce_behind<C, true>(upper_, below, c, most_right);
    for (int s = 0; s < C; ++s) {
      const V term = most_below[s] * size_of(inverse[s]) * most_right[s];
      sound_ &= term <= std::numeric_limits<T>::max();  // false for NaN
      largest_term_ = larger(largest_term_, term);
    }
  }

  const Shape& shape_;
  const Profile& profile_;
  const Values<T> values_;
  const int64_t* sources_;
  const Half<V> lower_, upper_;
  V largest_entry_ = {}, largest_term_ = {};
  decltype(V{} == V{}) sound_ = V{} == V{};
};

template <typename T>
void factor(const Shape& shape, const Profile& profile, const T* values, int64_t nnz, const int64_t* sources, T growth,
            T* numbers, bool* good, int64_t first, int64_t last) {
  typedef Vec<T> V;
  constexpr int64_t W = sizeof(V) / sizeof(T);
  V* bands = reinterpret_cast<V*>(numbers);
  std::vector<V> factors((larger(shape.lower, shape.reach()) + 1) * PANEL);
  const bool panels = smaller(shape.lower, shape.reach()) >= PANEL;
  const int64_t at_once = larger(shape.lower, shape.reach()) < WIDE ? GROUPS_AT_ONCE : 1;
  for (int64_t start = first; start < last; start += at_once) {
    std::vector<Group<T>> groups;
    for (int64_t g = start; g < smaller(start + at_once, last); ++g)
      groups.emplace_back(shape, profile, values, nnz, sources, bands + g * shape.numbers(), g * W);
    int64_t c = 0;
    for (; panels && c + PANEL <= shape.n; c += PANEL)
      for (auto& group : groups) group.template take<PANEL>(c, factors.data());
    for (; c < shape.n; ++c)
      for (auto& group : groups) group.template take<1>(c, factors.data());
    for (int64_t g = 0; g < int64_t(groups.size()); ++g) {
      bool* own = good + (start + g) * W;
      groups[g].judge(growth, own, own + shape.batch);
    }
  }
}

// Forward substitution by the pivots [j, j + C): their rows become those of E M^-1 y.
template <int C, typename V> inline void down(const Half<V>& half, int64_t j, V* y) {
  V known[C];
  for (int s = 0; s < C; ++s) {
    known[s] = y[j + s];
    for (int r = 0; r < s; ++r) known[s] -= half.entry(j + s, j + r) * known[r];
    known[s] *= half.entry(j + s, j + s);
    y[j + s] = known[s];
  }
  int64_t i = j + C;
  const int64_t common = half.end(j);
  for (; i < common; ++i) {
    V row = y[i];
    for (int s = 0; s < C; ++s) row -= half.entry(i, j + s) * known[s];
    y[i] = row;
  }
  for (int s = 1; s < C; ++s)
    for (int64_t r = i; r < half.end(j + s); ++r) y[r] -= half.entry(r, j + s) * known[s];
}

// Backward substitution for the unknowns [j, j + C): y becomes that of U^-1 y.
template <int C, typename V> inline void up(const Half<V>& half, int64_t j, V* y) {
  V sum[C] = {};
  const int64_t common = larger(half.end(j), j + C);
  for (int s = 1; s < C; ++s)
    for (int64_t i = common; i < half.end(j + s); ++i) sum[s] += half.entry(i, j + s) * y[i];
  // from the far end, so that what was found just before is needed last
  for (int64_t i = common - 1; i >= j + C; --i) {
    const V known = y[i];
    for (int s = 0; s < C; ++s) sum[s] += half.entry(i, j + s) * known;
  }
  for (int s = C - 1; s >= 0; --s) {
    for (int r = C - 1; r > s; --r) sum[s] += half.entry(j + r, j + s) * y[j + r];
    y[j + s] -= sum[s] * half.entry(j + s, j + s);
  }
}

// Solve for right-hand sides (batch, n); `order[i]` is the unknown in line i of the bands. The transpose swaps halves.
template <typename T>
void solve(const Shape& shape, const Profile& profile, const T* numbers, const int64_t* order, bool transpose,
           const T* rhs, T* x, int64_t first, int64_t last) {
  typedef Vec<T> V;
  constexpr int64_t W = sizeof(V) / sizeof(T);
  const int64_t n = shape.n;
  const int64_t whole = smaller(shape.lower, shape.reach()) >= PANEL ? n / PANEL * PANEL : 0;
  std::vector<V> memory(n);
  V* y = memory.data();
  T* lines = reinterpret_cast<T*>(y);
  for (int64_t g = first; g < last; ++g) {
    V* band = const_cast<V*>(reinterpret_cast<const V*>(numbers)) + g * shape.numbers();
    Half<V> lower = {band, shape.lower, profile.last}, upper = {band + shape.offset(), shape.reach(), profile.last};
    if (transpose) std::swap(lower, upper);
    const int64_t matrix = g * W, lanes = smaller(shape.batch - matrix, W);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t w = 0; w < lanes; ++w) lines[i * W + w] = rhs[(matrix + w) * n + order[i]];
    int64_t j = 0;
    for (; j < whole; j += PANEL) down<PANEL>(lower, j, y);
    for (; j < n; ++j) down<1>(lower, j, y);
    for (; j > whole; --j) up<1>(upper, j - 1, y);
    for (; j > 0; j -= PANEL) up<PANEL>(upper, j - PANEL, y);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t w = 0; w < lanes; ++w) x[(matrix + w) * n + order[i]] = lines[i * W + w];
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
