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
#include <utility>
#include <vector>

#include "lanes.h"

namespace {

template <typename T> constexpr int64_t WIDTH = sizeof(Vec<T>) / sizeof(T);

// Pivots that are taken together: a line that they reduce is read and written once for all of them.
constexpr int64_t PIVOTS = 4;

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
template <typename N> inline N larger(N a, N b) { return a > b ? a : b; }

// Whole numbers, as many and as wide as the numbers of a vector.
template <typename T> struct Whole;
template <> struct Whole<double> { typedef int64_t vec __attribute__((vector_size(VECTOR_BYTES))); };
template <> struct Whole<float> { typedef int32_t vec __attribute__((vector_size(VECTOR_BYTES))); };

// Numbers of whole vectors that hold so many.
template <typename T> inline int64_t whole(int64_t count) { return (count + WIDTH<T> - 1) / WIDTH<T> * WIDTH<T>; }

// Bands are narrow where what a pivot reaches stays in registers (`NarrowElimination`), in vectors of eight numbers.
// Those of a plane rod reach 5 numbers, those of a rod in space 10.
constexpr int EIGHT = 8, NARROW = 10;

template <typename T> struct Half {
  T *diagonal, *beside;
  const int64_t* last;
  int64_t n, reach, pitch;

  Half(T* at, const int64_t* last, int64_t n, int64_t reach)
      : diagonal(at), beside(at + n), last(last), n(n), reach(reach), pitch(pitch_of(reach)) {}
  static int64_t eights(int64_t reach) { return reach <= EIGHT ? EIGHT : 2 * EIGHT; }
  // There is memory for longer lines where vectors are wide, or the line is not very short.
  static int64_t pitch_of(int64_t reach) {
    return reach >= 4 && reach <= NARROW ? larger(whole<T>(reach), eights(reach)) : whole<T>(reach);
  }
  // Whether all of its lines is written, zeros included, for `NarrowElimination` to read.
  bool padded() const { return reach <= NARROW && pitch >= eights(reach); }
  T* end() const { return beside + n * pitch; }
  T* line(int64_t j) const { return beside + j * pitch; }
  int64_t width(int64_t j) const { return smaller(reach, last[j] - j); }
};

// Start a half as entries of the matrix: number h of line p is entry sources[p * (reach + 1) + h], or zero for -1. The
// first is on the diagonal. Lines of narrow bands are read as a whole, so all of them is written.
template <typename T>
void fill(const Half<T>& half, const T* values, const int64_t* sources) {
  const auto entry = [&](int64_t source) { return source < 0 ? T(0) : values[source]; };
  for (int64_t p = 0; p < half.n; ++p, sources += half.reach + 1) {
    T* line = half.line(p);
    const int64_t width = half.width(p), end = half.padded() ? half.pitch : whole<T>(width);
    half.diagonal[p] = entry(sources[0]);
    for (int64_t h = 0; h < width; ++h) line[h] = entry(sources[h + 1]);
    for (int64_t h = width; h < end; ++h) line[h] = T(0);
  }
}

template <typename T> inline Vec<T> loaded(const T* from) {
  Vec<T> found;
  std::memcpy(&found, from, sizeof found);
  return found;
}

// All numbers of a vector, two and two.
template <typename T, typename F> inline T joined(const Vec<T>& numbers, F f) {
  T lane[WIDTH<T>];
  std::memcpy(lane, &numbers, sizeof numbers);
  for (int64_t half = WIDTH<T> / 2; half; half /= 2)
    for (int64_t k = 0; k < half; ++k) lane[k] = f(lane[k], lane[k + half]);
  return lane[0];
}

// The largest size of a number in lines [begin, end).
template <typename T>
inline T largest(const Half<T>& half, int64_t begin, int64_t end) {
  Vec<T> most = {};
  T on_diagonal = 0;
  for (int64_t j = begin; j < end; ++j) {
    for (int64_t h = 0; h < half.width(j); h += WIDTH<T>) {  // zeros follow the line
      const Vec<T> numbers = loaded(half.line(j) + h), sizes = numbers < 0 ? -numbers : numbers;
      most = sizes > most ? sizes : most;
    }
    on_diagonal = larger(std::abs(half.diagonal[j]), on_diagonal);
  }
  return larger(on_diagonal, joined<T>(most, larger<T>));
}

// What stands beside the diagonal in the lines of some pivots, with zeros behind it.
template <typename T> class Lines {
 public:
  explicit Lines(int64_t pitch) : pitch_(pitch), numbers_(PIVOTS * pitch) {}
  const T* of(int64_t r) const { return numbers_.data() + r * pitch_; }
  void take(int64_t r, const Half<T>& half, int64_t j) {
    T* to = numbers_.data() + r * pitch_;
    const int64_t filled = whole<T>(half.width(j));
    const T* line = half.line(j);
    const Vec<T> zeros = {};
    for (int64_t k = 0; k < pitch_; k += WIDTH<T>) {
      const Vec<T> numbers = k < filled ? loaded(line + k) : zeros;
      std::memcpy(to + k, &numbers, sizeof numbers);
    }
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
        below_(larger(lower.pitch, upper.pitch) + whole<T>(PIVOTS + WIDTH<T>)), right_(below_) {}

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
      sound_ &= largest(lower_, j, j + 1) * std::abs(inverse) * largest(upper_, j, j + 1) <= limit_;  // false for NaN
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
      Vec<T> sum = loaded(to + k);
      for (int64_t r = 0; r < R; ++r) sum -= loaded(from[r] + k) * by[r];
      std::memcpy(to + k, &sum, sizeof sum);
    }
  }

  const Half<T>&lower_, &upper_;
  const bool symmetric_;
  const T limit_;
  Lines<T> below_, right_;
  bool sound_ = true;
};

// Eight numbers in a vector, however wide the machine's are.
template <typename T> struct Eight;
template <> struct Eight<double> {
  typedef double vec __attribute__((vector_size(EIGHT * sizeof(double))));
  typedef int64_t places __attribute__((vector_size(EIGHT * sizeof(double))));
};
template <> struct Eight<float> {
  typedef float vec __attribute__((vector_size(EIGHT * sizeof(float))));
  typedef int32_t places __attribute__((vector_size(EIGHT * sizeof(float))));
};

// The numbers of two vectors from number D on.
template <int D, typename T, typename V = typename Eight<T>::vec> inline V eight_from(V first, V second) {
#ifdef __clang__
  return __builtin_shufflevector(first, second, D, D + 1, D + 2, D + 3, D + 4, D + 5, D + 6, D + 7);
#else
  return __builtin_shuffle(first, second, typename Eight<T>::places{D, D + 1, D + 2, D + 3, D + 4, D + 5, D + 6, D + 7});
#endif
}

// What stands beside the diagonal in a line that reaches at most so many numbers; zeros behind it.
template <typename T, int REACH> struct NarrowLine {
  typedef typename Eight<T>::vec V;
  static constexpr int EIGHTS = (REACH + EIGHT - 1) / EIGHT;
  V part[EIGHTS] = {};

  T number(int k) const { return part[k / EIGHT][k % EIGHT]; }
  V at(int k) const { return k < EIGHTS ? part[k] : V{}; }
  NarrowLine times(T factor) const {
    NarrowLine found;
    for (int k = 0; k < EIGHTS; ++k) found.part[k] = part[k] * factor;
    return found;
  }
  // Subtract a line from its number D on, times a factor.
  template <int D> void subtract(const NarrowLine& line, T factor) {
    for (int k = 0; k < EIGHTS && k * EIGHT < REACH - D; ++k)
      part[k] -= eight_from<D % EIGHT, T>(line.at(k + D / EIGHT), line.at(k + D / EIGHT + 1)) * factor;
  }
};

// The elimination of a matrix of narrow bands in place: lines that a pivot reaches stay in registers until they are
// pivots themselves. So a pivot waits for the one before, and hardly for memory.
template <typename T, int REACH> class NarrowElimination {
 public:
  NarrowElimination(const Half<T>& lower, const Half<T>& upper, bool symmetric, T limit)
      : lower_(lower), upper_(upper), symmetric_(symmetric), limit_(limit) {}

  // Returns what `Elimination` does.
  bool run() { return symmetric_ ? eliminate<true>() : eliminate<false>() && grew_little(); }

 private:
  typedef NarrowLine<T, REACH> Line;

  // The lines of a half from the next pivot on, as far as that reaches.
  struct Window {
    const Half<T>& half;
    Line line[REACH];

    explicit Window(const Half<T>& of) : half(of) {
      for (int d = 0; d < REACH; ++d) line[d] = taken(d);
    }
    Line taken(int64_t j) const {
      Line numbers;
      if (j < half.n) std::memcpy(numbers.part, half.line(j), sizeof numbers.part);
      return numbers;
    }
    // Reduce the lines after that of the pivot j, times these factors, and go on to the next pivot.
    template <int... D> void reduce(int64_t j, const Line& by, std::integer_sequence<int, D...>) {
      std::memcpy(half.line(j), line[0].part, sizeof line[0].part);
      (line[D + 1].template subtract<D + 1>(line[0], by.number(D)), ...);
      for (int d = 1; d < REACH; ++d) line[d - 1] = line[d];
      line[REACH - 1] = taken(j + REACH);
    }
  };

  T diagonal(int64_t j) const { return j < lower_.n ? lower_.diagonal[j] : T(1); }

  template <bool symmetric> bool eliminate() {
    constexpr auto others = std::make_integer_sequence<int, REACH - 1>();
    Window below(lower_), right(upper_);
    bool sound = true;
    T pivot = diagonal(0);
    Line rest;  // of the diagonal
    for (int d = 0; d < REACH; ++d) rest.part[d / EIGHT][d % EIGHT] = diagonal(d + 1);
    for (int64_t j = 0; j < lower_.n; ++j) {
      const T inverse = T(1) / pivot;
      const Line by = (symmetric ? below : right).line[0].times(inverse);
      for (int k = 0; k < Line::EIGHTS; ++k) rest.part[k] -= below.line[0].part[k] * by.part[k];
      if (symmetric) {
        sound &= (inverse > 0) & (inverse <= std::numeric_limits<T>::max());
      } else {
        upper_.diagonal[j] = pivot;
        right.reduce(j, below.line[0].times(inverse), others);
      }
      below.reduce(j, by, others);
      lower_.diagonal[j] = inverse;
      pivot = rest.number(0);
      for (int k = 0; k < Line::EIGHTS; ++k) rest.part[k] = eight_from<1, T>(rest.part[k], rest.at(k + 1));
      rest.part[(REACH - 1) / EIGHT][(REACH - 1) % EIGHT] = diagonal(j + REACH + 1);
    }
    return sound;
  }

  // Whether no term of the elimination was larger than the limit. The inverses take the places of the pivots.
  bool grew_little() const {
    bool sound = true;
    for (int64_t j = 0; j < lower_.n; ++j) {
      const T pivot = std::abs(upper_.diagonal[j]), inverse = lower_.diagonal[j];
      T down = pivot, across = pivot;
      for (int k = 0; k < REACH; ++k) {
        down = larger(std::abs(lower_.line(j)[k]), down);
        across = larger(std::abs(upper_.line(j)[k]), across);
      }
      sound &= down * std::abs(inverse) * across <= limit_;  // false for NaN
      upper_.diagonal[j] = inverse;
    }
    return sound;
  }

  const Half<T>&lower_, &upper_;
  const bool symmetric_;
  const T limit_;
};

// Factor in place. Returns whether pivots of a symmetric matrix were positive; of others, whether no term was too large.
template <typename T> bool factored(const Half<T>& lower, const Half<T>& upper, bool symmetric, T limit) {
  const int64_t reach = larger(lower.reach, upper.reach);
  // both are padded then: the shorter one reaches less far
  const bool fits = reach <= NARROW && smaller(lower.pitch, upper.pitch) >= lower.eights(reach);
  if (!fits) return Elimination<T>(lower, upper, symmetric, limit).run();
  if (reach <= 5) return NarrowElimination<T, 5>(lower, upper, symmetric, limit).run();
  if (reach <= EIGHT) return NarrowElimination<T, EIGHT>(lower, upper, symmetric, limit).run();
  return NarrowElimination<T, NARROW>(lower, upper, symmetric, limit).run();
}

// Substitutions with the lines of R pivots from j on: y is read and written once for all of them. What is right of line
// j + r, as far as it concerns y from j + R on, begins at number R - r - 1; past its width other lines follow, or what
// was left there, which a mask hides.
template <typename T, int64_t R> class Block {
 public:
  Block(const Half<T>& half, int64_t j) : half_(half), j_(j), count_(half.width(j + R - 1)) {}

  // y -= these lines, as columns, times y at their pivots.
  void down(T* y) const {
    T* own = y + j_;
    for (int64_t r = 0; r < R; ++r)
      for (int64_t s = r + 1; s < R; ++s) own[s] -= over_pivot(r, s) * own[r];
    for (int64_t r = 0; r < R; ++r) own[r] *= half_.diagonal[j_ + r];
    for (int64_t k = 0; k < count_; k += WIDTH<T>) {
      Vec<T> less = loaded(own + R + k);
      for (int64_t r = 0; r < R; ++r) less -= part(r, k) * own[r];
      std::memcpy(own + R + k, &less, sizeof less);
    }
  }

  // y at these pivots -= these lines times y, times the inverses of the pivots.
  void up(T* y) const {
    T* own = y + j_;
    Vec<T> sum[R] = {};
    for (int64_t k = 0; k < count_; k += WIDTH<T>) {
      const Vec<T> more = loaded(own + R + k);
      for (int64_t r = 0; r < R; ++r) sum[r] += part(r, k) * more;
    }
    const auto add = [](T a, T b) { return a + b; };
    for (int64_t r = 0; r < R; ++r) own[r] -= joined<T>(sum[r], add) * half_.diagonal[j_ + r];
    for (int64_t s = R - 1; s > 0; --s)
      for (int64_t r = 0; r < s; ++r) own[r] -= over_pivot(r, s) * own[s];
  }

 private:
  // The number of line j + r at pivot j + s, over its own pivot.
  T over_pivot(int64_t r, int64_t s) const {
    return s - r <= half_.width(j_ + r) ? half_.line(j_ + r)[s - r - 1] * half_.diagonal[j_ + r] : T(0);
  }

  // Numbers k, k + 1, ... of what is right of line j + r, zero past its width.
  Vec<T> part(int64_t r, int64_t k) const {
    const int64_t from = R - r - 1 + k, left = half_.width(j_ + r) - from;
    const Vec<T> numbers = loaded(half_.line(j_ + r) + from);
    if (left >= WIDTH<T>) return numbers;
    typedef typename Whole<T>::vec Mask;
    Mask place;
    for (int64_t i = 0; i < WIDTH<T>; ++i) place[i] = i;
    return (Vec<T>)((Mask)numbers & (place < decltype(place[0] + 0)(left)));
  }

  const Half<T>& half_;
  const int64_t j_, count_;
};

// Solve in place; y (n) has zeros behind it, as many as a line has numbers.
template <typename T>
void solve(const Half<T>& lower, const Half<T>& upper, T* y) {
  const int64_t n = lower.n, whole = n / PIVOTS * PIVOTS;
  for (int64_t j = 0; j < whole; j += PIVOTS) Block<T, PIVOTS>(lower, j).down(y);
  for (int64_t j = whole; j < n; ++j) Block<T, 1>(lower, j).down(y);
  for (int64_t j = n; j > whole; --j) Block<T, 1>(upper, j - 1).up(y);
  for (int64_t j = whole; j > 0; j -= PIVOTS) Block<T, PIVOTS>(upper, j - PIVOTS).up(y);
}

}  // namespace

// Arguments as those of band.cpp, for a batch of one: `upper` is -1 for symmetric matrices, the last two are not read.
#define INTERFACE(T, suffix)                                                                                          \
  void single_band_factor_##suffix(int64_t, int64_t n, int64_t lower, int64_t upper, const int64_t* fronts,           \
                                   const T* values, int64_t, const int64_t* sources, const double* growth,            \
                                   T* numbers, bool* good, int64_t, int64_t) {                                        \
    const Half<T> below(numbers, fronts + n, n, lower);                                                               \
    const Half<T> right = upper < 0 ? below : Half<T>(below.end(), fronts + n, n, upper);                             \
    fill(below, values, sources);                                                                                     \
    T most = 0;                                                                                                       \
    if (upper >= 0) {                                                                                                 \
      fill(right, values, sources + n * (lower + 1));                                                                 \
      most = larger(largest(below, 0, n), largest(right, 0, n));                                                      \
    }                                                                                                                 \
    good[0] = factored<T>(below, right, upper < 0, most * T(*growth));                                                \
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
