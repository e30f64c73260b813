// Banded factors of few matrices, one after the other: the lanes of a vector are numbers of a line, where in band.cpp
// they are matrices.
//
// A = L D U without row exchanges: L and U have ones on their diagonals, and a symmetric matrix has U = L^T, of which
// one half is stored. Four pivots are taken at a time: first where their lines meet each other, then what is behind
// that, then what they do to the lines that they reach.
//
// A half is n lines, L by columns and U by rows. Lines j, ..., j + 3 of four pivots begin at number j of the matrix, so
// that what stands side by side in them is of one row of L (of one column of U). On its diagonal a line has the inverse
// of the pivot. After its first four numbers a line is whole vectors, with zeros behind what pivots reach: pivot j
// reaches the lines up to last[j], which grows with j. After the last line follow empty ones that complete four, with
// ones on the diagonal.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "lanes.h"

namespace {

constexpr int64_t FOUR = 4;  // pivots that are taken together

// In bands that reach so far the lines that pivots reach do not stay in the first cache; so many pivots are taken
// before the lines behind them, each of which is then read from the second cache once.
constexpr int64_t WIDE = 48, MANY = 16;

template <typename T> constexpr int64_t WIDTH = sizeof(Vec<T>) / sizeof(T);

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
template <typename N> inline N larger(N a, N b) { return a > b ? a : b; }

// Numbers of whole vectors that hold so many.
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

// All numbers of a vector, two and two.
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
  // Numbers that the lines of four pivots from j on reach behind their first four, rounded up to fours.
  int64_t behind(int64_t j) const {
    const int64_t end = smaller(j + FOUR, n) - 1;
    return (smaller(end + reach, last[end]) - j) / FOUR * FOUR;
  }
};

// Start a half as entries of the matrix, which are `batch` numbers apart: number h of line p from the diagonal on is
// entry sources[p * (reach + 1) + h], or zero for -1.
template <typename T> void fill(const Half<T>& half, const T* values, int64_t batch, const int64_t* sources) {
  const T zero = 0;
  std::memset(half.at, 0, half.numbers() * sizeof(T));
  for (int64_t p = 0; p < half.n; ++p, sources += half.reach + 1) {
    T* to = half.line(p) + p % FOUR;
    for (int64_t h = 0; h <= half.reach; ++h) {
      const T* from = sources[h] < 0 ? &zero : values + sources[h] * batch;  // no branch
      to[h] = *from;
    }
  }
}

// Put ones on the diagonal of the lines that complete four.
template <typename T> void complete(const Half<T>& half) {
  for (int64_t p = half.n; p < half.lines(); ++p) half.line(p)[p % FOUR] = 1;
}

// The largest size of so many numbers, of which a multiple of a vector is read.
template <typename T> T largest(const T* numbers, int64_t count) {
  Vec<T> most = {};
  for (int64_t k = 0; k < count; k += WIDTH<T>) most = larger_sizes<T>(most, loaded(numbers + k));
  return joined<T>(most, larger<T>);
}

// Lines r of four pivots at numbers s > r, where they meet each other.
template <typename T> using Corner = T[FOUR][FOUR];

// The elimination of a matrix in place. A symmetric one has the same half twice.
template <typename T, bool symmetric> class Elimination {
 public:
  Elimination(const Half<T>& lower, const Half<T>& upper, T limit)
      : lower_(lower), upper_(upper), limit_(limit), pitch_(larger(lower.pitch, upper.pitch) + WIDTH<T>),
        pivots_(larger(lower.reach, upper.reach) < WIDE ? FOUR : MANY), below_(pivots_ * pitch_),
        right_(symmetric ? 0 : pivots_ * pitch_) {}

  // Returns whether no term was larger than the limit, or the matrix is `definite`: symmetric, with positive pivots.
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
  // Whether no term of the factor is larger than the limit.
  bool small_terms() const {
    for (int64_t j = 0; j < lower_.n; j += FOUR)
      if (!small_terms_of_four(j)) return false;
    return true;
  }

  // Whether no term of the four pivots from j on is.
  bool small_terms_of_four(int64_t j) const {
    bool small = limit_ <= std::numeric_limits<T>::max();
    for (int r = 0; r < smaller(FOUR, lower_.n - j); ++r) small &= largest_term(j, r) <= limit_;  // false for NaN
    return small;
  }

  // Take the four pivots from j on. What is behind their corner is copied before it is divided by the pivots.
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

  // The largest size of a term of pivot j + r: of its line of L, times that of its line of U, times itself.
  T largest_term(int64_t j, int r) const {
    const auto of_line = [&](const Half<T>& half) {
      const T* line = half.line(j + r);
      T most = larger(largest(line + FOUR, half.behind(j)), T(1));
      for (int s = r + 1; s < FOUR; ++s) most = larger(std::abs(line[s]), most);
      return most;
    };
    return of_line(lower_) * of_line(upper_) * std::abs(T(1) / lower_.line(j + r)[r]);
  }

  // Subtract what pivots [begin, end) do to a half's lines after them, a few lines at a time by all of many pivots.
  void subtract_all(const Half<T>& half, const Half<T>& other, int64_t begin, int64_t end, const T* reduced) const {
    const int64_t reached = end + other.behind(end - FOUR), at_once = end - begin > FOUR ? FOUR : reached - end;
    for (int64_t p = end; p < reached; p += at_once)
      for (int64_t j = begin; j < end; j += FOUR)
        subtract(half, other, j, reduced + (j - begin) * pitch_, p, p + at_once);
  }

  // Find what the four lines from j on are where they meet each other.
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

  // Reduce what is behind the corner of the four lines from j on, keep it as it is in `reduced`, and divide it by the
  // pivots. `over` is the other half's corner. Sizes are local: for all that a compiler knows, stores change the others.
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

  // Subtract what the four pivots from j on do to lines [from, to), as far as they reach.
  void subtract(const Half<T>& half, const Half<T>& other, int64_t j, const T* reduced, int64_t from,
                int64_t to) const {
    const int64_t first = j + FOUR, count = half.behind(j), last = smaller(to - first, other.behind(j));
    const int64_t apart = pitch_, pitch = half.pitch, between = other.pitch;
    const T* by = other.line(j) + (from - j);
    T* line = half.line(from);
    for (int64_t p = from - first; p < last; ++p, ++by, line += pitch) {
      const T b[FOUR] = {by[0], by[between], by[2 * between], by[3 * between]};
      const int64_t begin = p / FOUR * FOUR;
      T* to_line = line - begin;
      for (int64_t k = begin; k < count; k += WIDTH<T>) {
        Vec<T> numbers = loaded(to_line + k);
        for (int r = 0; r < FOUR; ++r) numbers -= loaded(reduced + r * apart + k) * b[r];
        store<T>(to_line + k, numbers);
      }
    }
  }

  const Half<T>&lower_, &upper_;
  const T limit_;
  const int64_t pitch_, pivots_;
  std::vector<T> below_, right_;
};

// y -= L times what is in front of it, in place; then y over the pivots.
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

// y -= U times what is behind it, in place.
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

// Both halves of a matrix, or twice the one of a symmetric one, for which `reach_right` is -1.
template <typename T> struct Matrix {
  bool symmetric;
  Half<T> lower, upper;

  Matrix(T* at, const int64_t* last, int64_t n, int64_t reach_below, int64_t reach_right)
      : symmetric(reach_right < 0), lower(at, last, n, reach_below),
        upper(symmetric ? lower : Half<T>(at + lower.numbers(), last, n, reach_right)) {}
  int64_t numbers() const { return lower.numbers() + (symmetric ? 0 : upper.numbers()); }

  // Factor the matrix with these values. Returns whether no term was more than `growth` times as large as its largest
  // number, or the matrix is `definite`: symmetric, with positive pivots.
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

  // Solve in place; y has room for `room` numbers, zeros behind the n first.
  void solve(T* y, bool transpose) const {
    down(transpose ? upper : lower, y);
    up(transpose ? lower : upper, y);
  }
  int64_t room() const { return lower.lines() + lower.pitch + upper.pitch; }
};

}  // namespace

// Arguments as those of band.cpp, of matrices [first, last) of a batch: `upper` is -1 for symmetric matrices. A matrix
// takes as many numbers as `single_band_numbers` says.
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
