// The banded factor of one matrix: the lanes of a vector are numbers of a line, where in band.cpp they are matrices.
//
// A = M E U as there, without row exchanges: M the reduced columns below the diagonal, U the reduced rows right of it, E
// the inverses of the pivots; a symmetric matrix has U = M^T. A half holds the diagonal (n), in the end the inverses,
// then n lines of `pitch` numbers: what stands beside the diagonal, `reach` numbers and zeros up to a whole vector.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

template <typename T> struct Lanes;
template <> struct Lanes<double> { typedef double vec __attribute__((vector_size(VECTOR_BYTES))); };
template <> struct Lanes<float> { typedef float vec __attribute__((vector_size(VECTOR_BYTES))); };
template <typename T> using Vec = typename Lanes<T>::vec;
template <typename T> constexpr int64_t WIDTH = sizeof(Vec<T>) / sizeof(T);

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <typename T> struct Half {
  T *diagonal, *beside;
  int64_t n, reach, pitch;

  Half(T* at, int64_t n, int64_t reach)
      : diagonal(at), beside(at + n), n(n), reach(reach), pitch((reach + WIDTH<T> - 1) / WIDTH<T> * WIDTH<T>) {}
  T* end() const { return beside + n * pitch; }
  T* line(int64_t j) const { return beside + j * pitch; }
};

// to[0 : count] -= from[0 : count] * by, in whole vectors.
template <typename T>
inline void subtract(T* to, const T* from, T by, int64_t count) {
  for (int64_t k = 0; k < count; k += WIDTH<T>) {
    Vec<T> a, b;
    std::memcpy(&a, to + k, sizeof a);
    std::memcpy(&b, from + k, sizeof b);
    a -= b * by;
    std::memcpy(to + k, &a, sizeof a);
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

// Start a half as entries of the matrix: number h of line p is entry sources[p * (reach + 1) + h], or zero for -1. The
// first is on the diagonal. Returns the largest size of the entries.
template <typename T>
T fill(const Half<T>& half, const T* values, const int64_t* sources) {
  T most = 0;
  for (int64_t p = 0; p < half.n; ++p, sources += half.reach + 1) {
    for (int64_t h = 0; h <= half.reach; ++h) {
      const T value = sources[h] < 0 ? T(0) : values[sources[h]];
      (h ? half.line(p)[h - 1] : half.diagonal[p]) = value;
      most = std::abs(value) > most ? std::abs(value) : most;
    }
    for (int64_t h = half.reach; h < half.pitch; ++h) half.line(p)[h] = 0;
  }
  return most;
}

// Reduce the lines after j of a half by pivot j; the other half says by how much. `line` is line j of the half with as
// many zeros behind it.
template <typename T>
inline void reduce(const Half<T>& half, const Half<T>& other, const T* line, int64_t j, T inverse) {
  const int64_t last = smaller(smaller(half.reach, other.reach), half.n - 1 - j);
  for (int64_t k = 1; k <= last; ++k) {
    const T by = other.line(j)[k - 1] * inverse;
    half.diagonal[j + k] -= line[k - 1] * by;
    subtract(half.line(j + k), line + k, by, half.reach - k);
  }
}

template <typename T>
inline T largest(const Half<T>& half, int64_t j) {
  T most = std::abs(half.diagonal[j]);
  for (int64_t h = 0; h < half.reach; ++h) most = std::abs(half.line(j)[h]) > most ? std::abs(half.line(j)[h]) : most;
  return most;
}

// Factor in place. Returns whether pivots of a symmetric matrix were positive; of others, whether no term of the
// elimination was larger than `limit`.
template <typename T>
bool factor(const Half<T>& lower, const Half<T>& upper, bool symmetric, T limit) {
  std::vector<T> below(2 * lower.pitch), right(2 * upper.pitch);
  bool sound = true;
  for (int64_t j = 0; j < lower.n; ++j) {
    const T inverse = T(1) / lower.diagonal[j];
    std::memcpy(below.data(), lower.line(j), lower.pitch * sizeof(T));
    reduce(lower, upper, below.data(), j, inverse);
    if (symmetric) {
      sound &= (inverse > 0) & (inverse <= std::numeric_limits<T>::max());
    } else {
      upper.diagonal[j] = lower.diagonal[j];
      sound &= largest(lower, j) * std::abs(inverse) * largest(upper, j) <= limit;  // false for NaN
      std::memcpy(right.data(), upper.line(j), upper.pitch * sizeof(T));
      reduce(upper, lower, right.data(), j, inverse);
    }
    lower.diagonal[j] = upper.diagonal[j] = inverse;
  }
  return sound;
}

// Solve in place; y (n) has zeros behind it, as many as a line has numbers.
template <typename T>
void solve(const Half<T>& lower, const Half<T>& upper, T* y) {
  for (int64_t j = 0; j < lower.n; ++j) {
    const T v = y[j] * lower.diagonal[j];
    subtract(y + j + 1, lower.line(j), v, lower.reach);  // behind the end zeros are subtracted
    y[j] = v;
  }
  for (int64_t j = upper.n - 1; j >= 0; --j)
    y[j] -= product(upper.line(j), y + j + 1, upper.reach) * upper.diagonal[j];
}

}  // namespace

// Arguments as those of band.cpp, for a batch of one: `upper` is -1 for symmetric matrices, the last two are not read.
#define INTERFACE(T, suffix)                                                                                          \
  void single_band_factor_##suffix(int64_t, int64_t n, int64_t lower, int64_t upper, const T* values, int64_t,        \
                                   const int64_t* sources, const double* growth, T* numbers, bool* good, int64_t,     \
                                   int64_t) {                                                                         \
    const Half<T> below(numbers, n, lower), right = upper < 0 ? below : Half<T>(below.end(), n, upper);               \
    T most = fill(below, values, sources);                                                                            \
    if (upper >= 0) {                                                                                                 \
      const T more = fill(right, values, sources + n * (lower + 1));                                                  \
      most = more > most ? more : most;                                                                               \
    }                                                                                                                 \
    good[0] = factor<T>(below, right, upper < 0, most * T(*growth));                                                  \
  }                                                                                                                   \
  void single_band_solve_##suffix(int64_t, int64_t n, int64_t lower, int64_t upper, const T* numbers,                 \
                                  const int64_t* order, int64_t transpose, const T* rhs, T* x, int64_t, int64_t) {    \
    const Half<T> below(const_cast<T*>(numbers), n, lower), right = upper < 0 ? below : Half<T>(below.end(), n, upper); \
    std::vector<T> y(n + below.pitch + right.pitch + 1);                                                              \
    for (int64_t i = 0; i < n; ++i) y[i] = rhs[order[i]];                                                             \
    transpose ? solve(right, below, y.data()) : solve(below, right, y.data());                                        \
    for (int64_t i = 0; i < n; ++i) x[order[i]] = y[i];                                                               \
  }

extern "C" {
INTERFACE(double, float64)
INTERFACE(float, float32)
}
