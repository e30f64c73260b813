// Tests of whether robots lie in a plane of constant y.

#include <cstdint>

namespace {

// Whether the directors of edges are perpendicular to the plane (ACROSS) or lie in it (WITHIN).
enum { ACROSS = 1, WITHIN = 2 };

// Whether numbers begin, begin + step, ... up to `end` are all `value`.
template <typename T>
inline bool all(const T* at, int64_t begin, int64_t end, int64_t step, T value) {
  bool same = true;
  for (int64_t k = begin; k < end; k += step) same &= at[k] == value;
  return same;
}

// A finite number times zero is zero; others are NaN.
template <typename T>
inline bool all_finite(const T* at, int64_t count) {
  bool finite = true;
  for (int64_t k = 0; k < count; ++k) finite &= at[k] * T(0) == T(0);
  return finite;
}

// Whether in each row of q (rows, length) all nodes have the same y, and the angles after them and the y of the vectors
// after those are zero.
template <typename T>
bool one_y(int64_t rows, int64_t length, int64_t nodes, int64_t angles, const T* q) {
  const int64_t vectors = 3 * nodes + angles;
  for (int64_t row = 0; row < rows; ++row, q += length) {
    if (!all(q, 1, 3 * nodes, 3, q[1])) return false;
    if (!all(q, 3 * nodes, vectors, 1, T(0)) || !all(q, vectors + 1, length, 3, T(0))) return false;
  }
  return true;
}

// Whether all directors are on the same side of their edges, as seen in the plane, so that none is turned by half a
// turn against the one before it.
template <typename T>
bool on_one_side(int64_t count, const T* tangents, const T* directors) {
  bool left = true, right = true;
  for (int64_t k = 0; k < 3 * count; k += 3) {
    const T side = tangents[k + 2] * directors[k] - tangents[k] * directors[k + 2];
    left &= side > 0, right &= side < 0;
  }
  return left || right;
}

// ACROSS or WITHIN if robots with q (rows, length), tangents and directors (rows, angles, 3) of edges and twists
// (rows, springs) lie untwisted in a plane of constant y, with all directors perpendicular to it and equal, or with
// all directors in it and on one side of their edges; 0 otherwise.
template <typename T>
int64_t plane_of(int64_t rows, int64_t length, int64_t nodes, int64_t angles, int64_t springs, const T* q,
                 const T* tangents, const T* directors, const T* twists) {
  const int64_t end = 3 * rows * angles;
  if (!one_y(rows, length, nodes, angles, q) || !all(twists, 0, rows * springs, 1, T(0))) return 0;
  if (!all(tangents, 1, end, 3, T(0))) return 0;
  if (all(directors, 1, end, 3, T(0))) return on_one_side(rows * angles, tangents, directors) ? WITHIN : 0;
  return all(directors, 0, end, 3, T(0)) && all(directors, 2, end, 3, T(0)) && all(directors, 1, end, 3, directors[1])
             ? ACROSS
             : 0;
}

}  // namespace

#define INTERFACE(T, suffix)                                                                                          \
  int64_t one_y_##suffix(int64_t rows, int64_t length, int64_t nodes, int64_t angles, const T* q) {                   \
    return one_y<T>(rows, length, nodes, angles, q);                                                                  \
  }                                                                                                                   \
  int64_t all_zero_##suffix(int64_t count, const T* numbers) { return all(numbers, 0, count, 1, T(0)); }              \
  int64_t all_finite_##suffix(int64_t count, const T* numbers) { return all_finite(numbers, count); }                 \
  int64_t plane_of_##suffix(int64_t rows, int64_t length, int64_t nodes, int64_t angles, int64_t springs, const T* q, \
                            const T* tangents, const T* directors, const T* twists) {                                 \
    return plane_of<T>(rows, length, nodes, angles, springs, q, tangents, directors, twists);                         \
  }

extern "C" {
INTERFACE(double, float64)
INTERFACE(float, float32)
}
