// The banded factor of one matrix: the lanes of a vector are numbers of a line, where in band.cpp they are matrices.
//
// A = M E U as there, without row exchanges: M the reduced columns below the diagonal, U the reduced rows right of it, E
// the inverses of the pivots; a symmetric matrix has U = M^T. A half holds the diagonal (n), in the end the inverses,
// then n lines of `pitch` numbers: what stands beside the diagonal, `reach` numbers and zeros up to a whole vector. Of a
// line only what its front reaches is written and read: pivot j reaches the lines up to last[j], which grows with j.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "lanes.h"

namespace {

template <typename T> constexpr int64_t WIDTH = sizeof(Vec<T>) / sizeof(T);

// Pivots that are taken together: a line that they reduce is read and written once for all of them.
constexpr int64_t PIVOTS = 4;

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
template <typename N> inline N larger(N a, N b) { return a > b ? a : b; }

// Numbers of whole vectors that hold so many.
template <typename T> inline int64_t whole(int64_t count) { return (count + WIDTH<T> - 1) / WIDTH<T> * WIDTH<T>; }

template <typename T> struct Half {
  T *diagonal, *beside;
  const int64_t* last;
  int64_t n, reach, pitch;

  Half(T* at, const int64_t* last, int64_t n, int64_t reach)
      : diagonal(at), beside(at + n), last(last), n(n), reach(reach), pitch(whole<T>(reach)) {}
  T* end() const { return beside + n * pitch; }
  T* line(int64_t j) const { return beside + j * pitch; }
  int64_t width(int64_t j) const { return smaller(reach, last[j] - j); }
};

// Start a half as entries of the matrix: number h of line p is entry sources[p * (reach + 1) + h], or zero for -1. The
// first is on the diagonal. Returns the largest size of the entries.
template <typename T>
T fill(const Half<T>& half, const T* values, const int64_t* sources) {
  T most = 0;
  for (int64_t p = 0; p < half.n; ++p, sources += half.reach + 1) {
    T* line = half.line(p);
    const int64_t width = half.width(p);
    for (int64_t h = 0; h <= width; ++h) {
      const T value = sources[h] < 0 ? T(0) : values[sources[h]];
      (h ? line[h - 1] : half.diagonal[p]) = value;
      most = std::abs(value) > most ? std::abs(value) : most;
    }
    std::fill(line + width, line + whole<T>(width), T(0));
  }
  return most;
}

template <typename T>
inline T largest(const Half<T>& half, int64_t j) {
  T most = std::abs(half.diagonal[j]);
  const int64_t width = half.width(j);
  for (int64_t h = 0; h < width; ++h) most = std::abs(half.line(j)[h]) > most ? std::abs(half.line(j)[h]) : most;
  return most;
}

// What stands beside the diagonal in the lines of some pivots, with zeros behind it.
template <typename T> class Lines {
 public:
  explicit Lines(int64_t pitch) : pitch_(pitch), numbers_(PIVOTS * pitch) {}
  const T* of(int64_t r) const { return numbers_.data() + r * pitch_; }
  void take(int64_t r, const Half<T>& half, int64_t j) {
    T* to = numbers_.data() + r * pitch_;
    std::fill(std::copy_n(half.line(j), half.width(j), to), to + pitch_, T(0));
  }

 private:
  int64_t pitch_;
  std::vector<T> numbers_;
};

// The elimination of a matrix in place.
template <typename T> class Elimination {
 public:
  Elimination(const Half<T>& lower, const Half<T>& upper, bool symmetric, T limit)
      : lower_(lower), upper_(upper), symmetric_(symmetric), limit_(limit),
        below_(larger(lower.pitch, upper.pitch) + PIVOTS + WIDTH<T>), right_(below_) {}

  // Returns whether pivots of a symmetric matrix were positive; of others, whether no term was larger than the limit.
  bool run() {
    int64_t j = 0;
    for (; j + PIVOTS <= lower_.n; j += PIVOTS) take<PIVOTS>(j);
    for (; j < lower_.n; ++j) take<1>(j);
    return sound_;
  }

 private:
  // Take R pivots from j on: reduce the lines that they reach.
  template <int64_t R> void take(int64_t j) {
    T inverse[R];
    for (int64_t r = 0; r < R; ++r) {
      inverse[r] = take_pivot(j + r, r);
      for (int64_t i = j + r + 1; i < j + R; ++i) reduce<1>(i, j + r, r, inverse + r);
    }
    for (int64_t i = j + R; i <= lower_.last[j + R - 1]; ++i) reduce<R>(i, j, 0, inverse);
  }

  // Copy the lines of pivot j, number r of those that are taken together; return its inverse, which takes its place.
  T take_pivot(int64_t j, int64_t r) {
    const T inverse = T(1) / lower_.diagonal[j];
    below_.take(r, lower_, j);
    if (symmetric_) {
      sound_ &= (inverse > 0) & (inverse <= std::numeric_limits<T>::max());
    } else {
      upper_.diagonal[j] = lower_.diagonal[j];
      sound_ &= largest(lower_, j) * std::abs(inverse) * largest(upper_, j) <= limit_;  // false for NaN
      right_.take(r, upper_, j);
    }
    return lower_.diagonal[j] = upper_.diagonal[j] = inverse;
  }

  // Reduce line i of both halves by R pivots from j on, whose lines are copied from number `first` on.
  template <int64_t R> void reduce(int64_t i, int64_t j, int64_t first, const T* inverse) {
    reduce_half<R>(lower_, below_, symmetric_ ? below_ : right_, i, j, first, inverse);
    if (!symmetric_) reduce_half<R>(upper_, right_, below_, i, j, first, inverse);
  }

  // The other half's lines say by how much.
  template <int64_t R>
  static void reduce_half(const Half<T>& half, const Lines<T>& lines, const Lines<T>& others, int64_t i, int64_t j,
                          int64_t first, const T* inverse) {
    const T* from[R];
    T by[R];
    for (int64_t r = 0; r < R; ++r) {
      const int64_t at = i - (j + r) - 1;  // of line i beside the diagonal of the pivot
      by[r] = others.of(first + r)[at] * inverse[r];
      from[r] = lines.of(first + r) + at + 1;
      half.diagonal[i] -= from[r][-1] * by[r];
    }
    T* to = half.line(i);
    const int64_t count = smaller(half.reach, half.last[j + R - 1] - i);
    for (int64_t k = 0; k < count; k += WIDTH<T>) {
      Vec<T> sum;
      std::memcpy(&sum, to + k, sizeof sum);
      for (int64_t r = 0; r < R; ++r) {
        Vec<T> line;
        std::memcpy(&line, from[r] + k, sizeof line);
        sum -= line * by[r];
      }
      std::memcpy(to + k, &sum, sizeof sum);
    }
  }

  const Half<T>&lower_, &upper_;
  const bool symmetric_;
  const T limit_;
  Lines<T> below_, right_;
  bool sound_ = true;
};

// y[0 : count] -= line[0 : count] * by, in whole vectors.
template <typename T>
inline void subtract(T* y, const T* line, T by, int64_t count) {
  for (int64_t k = 0; k < count; k += WIDTH<T>) {
    Vec<T> a, b;
    std::memcpy(&a, y + k, sizeof a);
    std::memcpy(&b, line + k, sizeof b);
    a -= b * by;
    std::memcpy(y + k, &a, sizeof a);
  }
}

template <typename T>
inline T product(const T* a, const T* b, int64_t count) {
  Vec<T> sum = {};
  for (int64_t k = 0; k < count; k += WIDTH<T>) {
    Vec<T> x, y;
    std::memcpy(&x, a + k, sizeof x);
    std::memcpy(&y, b + k, sizeof y);
    sum += x * y;
  }
  T total = 0;
  for (int64_t k = 0; k < WIDTH<T>; ++k) total += sum[k];
  return total;
}

// Solve in place; y (n) has zeros behind it, as many as a line has numbers.
template <typename T>
void solve(const Half<T>& lower, const Half<T>& upper, T* y) {
  for (int64_t j = 0; j < lower.n; ++j) {
    const T v = y[j] * lower.diagonal[j];
    subtract(y + j + 1, lower.line(j), v, lower.width(j));  // behind the front zeros are subtracted
    y[j] = v;
  }
  for (int64_t j = upper.n - 1; j >= 0; --j)
    y[j] -= product(upper.line(j), y + j + 1, upper.width(j)) * upper.diagonal[j];
}

}  // namespace

// Arguments as those of band.cpp, for a batch of one: `upper` is -1 for symmetric matrices, the last two are not read.
#define INTERFACE(T, suffix)                                                                                          \
  void single_band_factor_##suffix(int64_t, int64_t n, int64_t lower, int64_t upper, const int64_t* fronts,           \
                                   const T* values, int64_t, const int64_t* sources, const double* growth,            \
                                   T* numbers, bool* good, int64_t, int64_t) {                                        \
    const Half<T> below(numbers, fronts + n, n, lower);                                                               \
    const Half<T> right = upper < 0 ? below : Half<T>(below.end(), fronts + n, n, upper);                             \
    T most = fill(below, values, sources);                                                                            \
    if (upper >= 0) most = larger(most, fill(right, values, sources + n * (lower + 1)));                              \
    good[0] = Elimination<T>(below, right, upper < 0, most * T(*growth)).run();                                       \
  }                                                                                                                   \
  void single_band_solve_##suffix(int64_t, int64_t n, int64_t lower, int64_t upper, const int64_t* fronts,            \
                                  const T* numbers, const int64_t* order, int64_t transpose, const T* rhs, T* x,      \
                                  int64_t, int64_t) {                                                                 \
    const Half<T> below(const_cast<T*>(numbers), fronts + n, n, lower);                                               \
    const Half<T> right = upper < 0 ? below : Half<T>(below.end(), fronts + n, n, upper);                             \
    std::vector<T> y(n + below.pitch + right.pitch + 1);                                                              \
    for (int64_t i = 0; i < n; ++i) y[i] = rhs[order[i]];                                                             \
    transpose ? solve(right, below, y.data()) : solve(below, right, y.data());                                        \
    for (int64_t i = 0; i < n; ++i) x[order[i]] = y[i];                                                               \
  }

extern "C" {
INTERFACE(double, float64)
INTERFACE(float, float32)
}
