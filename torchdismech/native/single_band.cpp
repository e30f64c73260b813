// Banded factors of few matrices, one after the other: the lanes of a vector are numbers of one line, while in band.cpp
// they are matrices.
//
// A = L D U without row exchanges: L and U have ones on their diagonals, and a symmetric matrix has U = L^T, so that
// one half is stored. Four pivots are eliminated at a time: first the 4 x 4 corner where their lines meet, then the
// rest of their lines behind the corner, then the lines that they reach.
//
// A half consists of n lines, the columns of L or the rows of U. The lines j, ..., j + 3 of four pivots all begin at
// number j of the matrix, so that numbers at the same position in them belong to one row of L (one column of U). On its
// diagonal a line has the inverse of the pivot. After its first four numbers a line consists of whole vectors, padded
// with zeros beyond the reach of its pivot: pivot j reaches the lines up to last[j], which increases with j. The number
// of lines is rounded up to a multiple of four by empty lines with ones on the diagonal.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "lanes.h"

namespace {

constexpr int64_t FOUR = 4;  // pivots that are taken together

// Lines that are reduced together by four pivots: so many that their 4 LINES factors stay in registers.
constexpr int64_t LINES = VECTOR_BYTES == 64 ? 4 : 2;

// With a reach of WIDE or more, the lines that pivots reach do not fit into the first cache. Then MANY pivots are
// eliminated before the lines behind them are reduced, so that each of these is read from the second cache once.
constexpr int64_t WIDE = 48, MANY = 16;

template <typename T> constexpr int64_t WIDTH = sizeof(Vec<T>) / sizeof(T);

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
template <typename N> inline N larger(N a, N b) { return a > b ? a : b; }

// `count` rounded up to whole vectors.
template <typename T> inline int64_t whole(int64_t count) { return (count + WIDTH<T> - 1) / WIDTH<T> * WIDTH<T>; }

template <typename T> inline Vec<T> loaded(const T* from) {
  Vec<T> found;
  std::memcpy(&found, from, sizeof found);
  return found;
}

template <typename T> inline void store(T* to, Vec<T> numbers) { std::memcpy(to, &numbers, sizeof numbers); }

template <typename T> inline Vec<T> larger_sizes(Vec<T> most, Vec<T> numbers) {
  const Vec<T> sizes = numbers < 0 ? -numbers : numbers;
  return sizes > most ? sizes : most;
}

// Combine all numbers of a vector by f, pairwise.
template <typename T, typename F> inline T joined(const Vec<T>& numbers, F f) {
  T lane[WIDTH<T>];
  std::memcpy(lane, &numbers, sizeof numbers);
  for (int64_t half = WIDTH<T> / 2; half; half /= 2)
    for (int64_t k = 0; k < half; ++k) lane[k] = f(lane[k], lane[k + half]);
  return lane[0];
}

template <typename T> struct Half {
  T* at;
  int64_t n, reach, pitch;  // lines, numbers that they reach beside the diagonal, and that they take in memory
  const int64_t* last;

  Half(T* at, const int64_t* last, int64_t n, int64_t reach)
      : at(at), n(n), reach(reach), pitch(FOUR + whole<T>((reach + FOUR - 1) / FOUR * FOUR)), last(last) {}
  int64_t lines() const { return (n + FOUR - 1) / FOUR * FOUR; }
  int64_t numbers() const { return lines() * pitch; }
  T* line(int64_t j) const { return at + j * pitch; }
  // How many numbers the lines of the four pivots from j on have behind their first four, rounded up to a multiple of
  // 4.
  int64_t behind(int64_t j) const {
    const int64_t end = smaller(j + FOUR, n) - 1;
    return (smaller(end + reach, last[end]) - j) / FOUR * FOUR;
  }
};

// Fill a half with entries of the matrix, which are `batch` numbers apart in `values`: number h of line p, counted from
// the diagonal, is entry sources[p * (reach + 1) + h], or zero for -1.
template <typename T> void fill(const Half<T>& half, const T* values, int64_t batch, const int64_t* sources) {
  const T zero = 0;
  std::memset(half.at, 0, half.numbers() * sizeof(T));
  for (int64_t p = 0; p < half.n; ++p, sources += half.reach + 1) {
    T* to = half.line(p) + p % FOUR;
    const int64_t reached = smaller(half.reach, half.last[p] - p);
    for (int64_t h = 0; h <= reached; ++h) {
      const T* from = sources[h] < 0 ? &zero : values + sources[h] * batch;  // compiles without a branch
      to[h] = *from;
    }
  }
}

// Put ones on the diagonal of the padding lines.
template <typename T> void complete(const Half<T>& half) {
  for (int64_t p = half.n; p < half.lines(); ++p) half.line(p)[p % FOUR] = 1;
}

// The largest absolute value of `count` numbers; whole vectors are read.
template <typename T> T largest(const T* numbers, int64_t count) {
  Vec<T> most = {};
  for (int64_t k = 0; k < count; k += WIDTH<T>) most = larger_sizes<T>(most, loaded(numbers + k));
  return joined<T>(most, larger<T>);
}

// The corner where the lines of four pivots meet: [r][s] is number s > r of line r.
template <typename T> using Corner = T[FOUR][FOUR];

// The elimination of a matrix in place. For a symmetric one `lower` and `upper` are the same half.
template <typename T, bool symmetric> class Elimination {
 public:
  Elimination(const Half<T>& lower, const Half<T>& upper, T limit)
      : lower_(lower), upper_(upper), limit_(limit), pitch_(larger(lower.pitch, upper.pitch) + WIDTH<T>),
        pivots_(larger(lower.reach, upper.reach) < WIDE ? FOUR : MANY), below_(pivots_ * pitch_),
        right_(symmetric ? 0 : pivots_ * pitch_) {}

  // Returns whether the matrix is `definite` (symmetric, with positive pivots), or no term was larger than the limit.
  bool run(bool* definite) {
    bool sound = true;
    for (int64_t begin = 0; begin < lower_.n; begin += pivots_) {
      const int64_t end = smaller(begin + pivots_, lower_.lines());
      for (int64_t j = begin; j < end; j += FOUR) {
        sound &= take(j, below_.data() + (j - begin) * pitch_, right_.data() + (j - begin) * pitch_);
        if (j + FOUR == end) continue;
        subtract(lower_, upper_, j, below_.data() + (j - begin) * pitch_, j + FOUR, end);
        if (!symmetric) subtract(upper_, lower_, j, right_.data() + (j - begin) * pitch_, j + FOUR, end);
      }
      subtract_all(lower_, upper_, begin, end, below_.data());
      if (!symmetric) subtract_all(upper_, lower_, begin, end, right_.data());
    }
    *definite = symmetric && sound;
    return sound || (symmetric && small_terms());
  }

 private:
  // Whether no term of the elimination is larger than the limit.
  bool small_terms() const {
    for (int64_t j = 0; j < lower_.n; j += FOUR)
      if (!small_terms_of_four(j)) return false;
    return true;
  }

  // Whether no term of the four pivots from j on is larger than the limit.
  bool small_terms_of_four(int64_t j) const {
    bool small = limit_ <= std::numeric_limits<T>::max();
    for (int r = 0; r < smaller(FOUR, lower_.n - j); ++r) small &= largest_term(j, r) <= limit_;  // false for NaN
    return small;
  }

  // Eliminate the four pivots from j on. The numbers behind their corner are copied to `below` and `right` before they
  // are divided by the pivots. Returns whether the pivots are positive (symmetric), or their terms small.
  bool take(int64_t j, T* below, T* right) const {
    T inverse[FOUR];
    Corner<T> down, across;
    const bool positive = take_corner(j, inverse, down, across);
    reduce(lower_, j, inverse, symmetric ? down : across, below);
    if (!symmetric) reduce(upper_, j, inverse, down, right);
    keep(lower_, j, inverse, down);
    if (symmetric) return positive;
    keep(upper_, j, inverse, across);
    return small_terms_of_four(j);
  }

  // The largest term of pivot j + r: the largest number of its line of L, times that of its line of U, times the pivot.
  // It is infinite where the pivot is zero.
  T largest_term(int64_t j, int r) const {
    const auto of_line = [&](const Half<T>& half) {
      const T* line = half.line(j + r);
      T most = larger(largest(line + FOUR, half.behind(j)), T(1));
      for (int s = r + 1; s < FOUR; ++s) most = larger(std::abs(line[s]), most);
      return most;
    };
    const T inverse = std::abs(lower_.line(j + r)[r]);
    if (!(inverse <= std::numeric_limits<T>::max())) return std::numeric_limits<T>::infinity();
    return of_line(lower_) * of_line(upper_) * (T(1) / inverse);
  }

  // Reduce the lines of a half after pivots [begin, end) by these: with MANY pivots a few lines at a time, each by all.
  void subtract_all(const Half<T>& half, const Half<T>& other, int64_t begin, int64_t end, const T* reduced) const {
    const int64_t reached = end + other.behind(end - FOUR), at_once = end - begin > FOUR ? FOUR : reached - end;
    for (int64_t p = end; p < reached; p += at_once)
      for (int64_t j = begin; j < end; j += FOUR)
        subtract(half, other, j, reduced + (j - begin) * pitch_, p, p + at_once);
  }

  // Eliminate the corner of the four lines from j on; return whether its pivots are positive.
  bool take_corner(int64_t j, T* inverse, Corner<T>& down, Corner<T>& across) const {
    T a[FOUR][FOUR];
    for (int c = 0; c < FOUR; ++c)
      for (int r = c; r < FOUR; ++r) {
        a[r][c] = lower_.line(j + c)[r];
        if (!symmetric && r > c) a[c][r] = upper_.line(j + c)[r];
      }
    bool positive = true;
    for (int k = 0; k < FOUR; ++k) {
      inverse[k] = T(1) / a[k][k];
      positive &= (inverse[k] > 0) & (inverse[k] <= std::numeric_limits<T>::max());
      for (int r = k + 1; r < FOUR; ++r) {
        down[k][r] = a[r][k] * inverse[k];
        if (!symmetric) across[k][r] = a[k][r] * inverse[k];
      }
      for (int c = k + 1; c < FOUR; ++c)
        for (int r = symmetric ? c : k + 1; r < FOUR; ++r) a[r][c] -= a[r][k] * (symmetric ? down : across)[k][c];
    }
    return positive;
  }

  // Reduce the numbers behind the corner of the four lines from j on, copy them to `reduced`, and divide them by the
  // pivots. `over` is the other half's corner. Sizes are local variables: for all that the compiler knows, the stores
  // might change members.
  void reduce(const Half<T>& half, int64_t j, const T* inverse, const Corner<T>& over, T* reduced) const {
    const int64_t count = half.behind(j), apart = pitch_, pitch = half.pitch;
    T* line = half.line(j) + FOUR;
    int64_t k = 0;
    for (; k < count; k += WIDTH<T>) {
      Vec<T> numbers[FOUR];
      for (int r = 0; r < FOUR; ++r) {
        numbers[r] = loaded(line + r * pitch + k);
        for (int s = 0; s < r; ++s) numbers[r] -= numbers[s] * over[s][r];
        store<T>(reduced + r * apart + k, numbers[r]);
        store<T>(line + r * pitch + k, numbers[r] * inverse[r]);
      }
    }
    for (int r = 0; r < FOUR; ++r) store<T>(reduced + r * apart + k, Vec<T>{});  // `subtract` reads beyond
  }

  static void keep(const Half<T>& half, int64_t j, const T* inverse, const Corner<T>& corner) {
    for (int r = 0; r < FOUR; ++r) {
      T* line = half.line(j + r);
      line[r] = inverse[r];
      for (int s = r + 1; s < FOUR; ++s) line[s] = corner[r][s];
    }
  }

  // Reduce the lines [from, to), as far as they are reached, by the four pivots from j on.
  void subtract(const Half<T>& half, const Half<T>& other, int64_t j, const T* reduced, int64_t from,
                int64_t to) const {
    const int64_t first = j + FOUR, count = half.behind(j), last = smaller(to - first, other.behind(j));
    const int64_t apart = pitch_, pitch = half.pitch, between = other.pitch;
    const T* by = other.line(j) + (from - j);
    T* line = half.line(from);
    for (int64_t p = from - first; p < last; p += LINES, by += LINES, line += LINES * pitch) {
      T b[LINES][FOUR];
      for (int l = 0; l < LINES; ++l)
        for (int r = 0; r < FOUR; ++r) b[l][r] = by[l + r * between];
      const int64_t begin = p / FOUR * FOUR;
      T* to = line - begin;
      for (int64_t k = begin; k < count; k += WIDTH<T>) {
        Vec<T> numbers[LINES];
        for (int l = 0; l < LINES; ++l) numbers[l] = loaded(to + l * pitch + k);
        for (int r = 0; r < FOUR; ++r) {
          const Vec<T> own = read_once<Vec<T>>(reduced + r * apart + k);
          for (int l = 0; l < LINES; ++l) numbers[l] -= own * b[l][r];
        }
        for (int l = 0; l < LINES; ++l) store<T>(to + l * pitch + k, numbers[l]);
      }
    }
  }

  const Half<T>&lower_, &upper_;
  const T limit_;
  const int64_t pitch_, pivots_;
  std::vector<T> below_, right_;
};

// Forward substitution in place: y = D^-1 L^-1 y.
template <typename T> void down(const Half<T>& half, T* y) {
  for (int64_t j = 0; j < half.n; j += FOUR) {
    const T* line = half.line(j);
    T *own = y + j, *behind = own + FOUR;
    T known[FOUR];
    for (int r = 0; r < FOUR; ++r) {
      known[r] = own[r];
      for (int s = 0; s < r; ++s) known[r] -= line[s * half.pitch + r] * known[s];
    }
    const int64_t count = half.behind(j);
    for (int64_t k = 0; k < count; k += WIDTH<T>) {
      Vec<T> numbers = loaded(behind + k);
      for (int r = 0; r < FOUR; ++r) numbers -= loaded(line + r * half.pitch + FOUR + k) * known[r];
      store<T>(behind + k, numbers);
    }
    for (int r = 0; r < FOUR; ++r) own[r] = known[r] * line[r * half.pitch + r];
  }
}

// Backward substitution in place: y = U^-1 y.
template <typename T> void up(const Half<T>& half, T* y) {
  for (int64_t j = half.lines() - FOUR; j >= 0; j -= FOUR) {
    const T* line = half.line(j);
    T *own = y + j, *behind = own + FOUR;
    Vec<T> sum[FOUR] = {};
    const int64_t count = half.behind(j);
    for (int64_t k = 0; k < count; k += WIDTH<T>) {
      const Vec<T> numbers = loaded(behind + k);
      for (int r = 0; r < FOUR; ++r) sum[r] += loaded(line + r * half.pitch + FOUR + k) * numbers;
    }
    for (int r = FOUR - 1; r >= 0; --r) {
      own[r] -= joined<T>(sum[r], [](T a, T b) { return a + b; });
      for (int s = r + 1; s < FOUR; ++s) own[r] -= line[r * half.pitch + s] * own[s];
    }
  }
}

// Both halves of a matrix; a symmetric one, with `reach_right` = -1, has the same half twice.
template <typename T> struct Matrix {
  bool symmetric;
  Half<T> lower, upper;

  Matrix(T* at, const int64_t* last, int64_t n, int64_t reach_below, int64_t reach_right)
      : symmetric(reach_right < 0), lower(at, last, n, reach_below),
        upper(symmetric ? lower : Half<T>(at + lower.numbers(), last, n, reach_right)) {}
  int64_t numbers() const { return lower.numbers() + (symmetric ? 0 : upper.numbers()); }

  // Factor the matrix with these values. Returns whether it is `definite` (symmetric, with positive pivots), or no
  // term of the elimination was larger than `growth` times its largest entry.
  bool factor(const T* values, int64_t batch, const int64_t* sources, T growth, bool* definite) const {
    fill(lower, values, batch, sources);
    if (symmetric) {
      const T limit = growth * largest(lower.at, lower.numbers());
      complete(lower);
      return Elimination<T, true>(lower, upper, limit).run(definite);
    }
    fill(upper, values, batch, sources + lower.n * (lower.reach + 1));
    const T limit = growth * larger(largest(lower.at, lower.numbers()), largest(upper.at, upper.numbers()));
    complete(lower);
    complete(upper);
    return Elimination<T, false>(lower, upper, limit).run(definite);
  }

  // Solve in place; y has `room()` numbers, zero after the first n.
  void solve(T* y, bool transpose) const {
    down(transpose ? upper : lower, y);
    up(transpose ? lower : upper, y);
  }
  int64_t room() const { return lower.lines() + lower.pitch + upper.pitch; }
};

}  // namespace

// Arguments as in band.cpp, for matrices [first, last) of a batch; `upper` is -1 for symmetric matrices. A matrix takes
// `single_band_numbers` numbers of memory.
#define INTERFACE(T, suffix)                                                                                          \
  int64_t single_band_numbers_##suffix(int64_t n, int64_t lower, int64_t upper) {                                     \
    return Matrix<T>(nullptr, nullptr, n, lower, upper).numbers();                                                    \
  }                                                                                                                   \
  void single_band_factor_##suffix(int64_t batch, int64_t n, int64_t lower, int64_t upper, const int64_t* profile,    \
                                   const T* values, int64_t, const int64_t* sources, const double* growth,            \
                                   T* numbers, bool* good, int64_t first, int64_t last) {                             \
    const int64_t each = single_band_numbers_##suffix(n, lower, upper);                                               \
    for (int64_t m = first; m < last; ++m) {                                                                          \
      const Matrix<T> matrix(numbers + m * each, profile + n, n, lower, upper);                                       \
      good[m] = matrix.factor(values + m, batch, sources, T(*growth), good + batch + m);                              \
    }                                                                                                                 \
  }                                                                                                                   \
  void single_band_solve_##suffix(int64_t, int64_t n, int64_t lower, int64_t upper, const int64_t* profile,           \
                                  const T* numbers, const int64_t* order, int64_t transpose, const T* rhs, T* x,      \
                                  int64_t first, int64_t last) {                                                      \
    const int64_t each = single_band_numbers_##suffix(n, lower, upper);                                               \
    for (int64_t m = first; m < last; ++m) {                                                                          \
      const Matrix<T> matrix(const_cast<T*>(numbers) + m * each, profile + n, n, lower, upper);                       \
      std::vector<T> y(matrix.room());                                                                                \
      for (int64_t i = 0; i < n; ++i) y[i] = rhs[m * n + order[i]];                                                   \
      matrix.solve(y.data(), transpose != 0);                                                                         \
      for (int64_t i = 0; i < n; ++i) x[m * n + order[i]] = y[i];                                                     \
    }                                                                                                                 \
  }

extern "C" {
INTERFACE(double, float64)
INTERFACE(float, float32)
}
