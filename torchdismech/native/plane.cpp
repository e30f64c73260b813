// Whether robots lie in a plane in which y is the same everywhere.

#include <cstdint>

namespace {

// How the directors of edges lie, as bits.
enum { ACROSS = 1, WITHIN = 2 };

// Whether numbers begin, begin + step, ... up to `end` are all `value`.
template <typename T>
inline bool all(const T* at, int64_t begin, int64_t end, int64_t step, T value) {
  bool same = true;
  for (int64_t k = begin; k < end; k += step) same &= at[k] == value;
  return same;
}

// Whether in each row of q (rows, length) the nodes have one y, the angles after them are zero, and so is y of the
// vectors that follow.
template <typename T>
bool in_plane(int64_t rows, int64_t length, int64_t nodes, int64_t angles, const T* q) {
  const int64_t vectors = 3 * nodes + angles;
  for (int64_t row = 0; row < rows; ++row, q += length) {
    if (nodes && !all(q, 1, 3 * nodes, 3, q[1])) return false;
    if (!all(q, 3 * nodes, vectors, 1, T(0)) || !all(q, vectors + 1, length, 3, T(0))) return false;
  }
  return true;
}

// How the directors (rows, angles, 3) of edges lie that are in a plane themselves, with tangents (rows, angles, 3) and
// twists (rows, springs): all across the plane, or all within; 0 where neither is so.
template <typename T>
int64_t plane_of(int64_t rows, int64_t length, int64_t nodes, int64_t angles, int64_t springs, const T* q,
                 const T* tangents, const T* directors, const T* twists) {
  const int64_t end = 3 * rows * angles;
  if (!in_plane(rows, length, nodes, angles, q) || !all(twists, 0, rows * springs, 1, T(0))) return 0;
  if (!all(tangents, 1, end, 3, T(0))) return 0;
  if (all(directors, 1, end, 3, T(0))) return WITHIN;
  return all(directors, 0, end, 3, T(0)) && all(directors, 2, end, 3, T(0)) ? ACROSS : 0;
}

}  // namespace

#define INTERFACE(T, suffix)                                                                                          \
  int64_t in_plane_##suffix(int64_t rows, int64_t length, int64_t nodes, int64_t angles, const T* q) {                \
    return in_plane<T>(rows, length, nodes, angles, q);                                                               \
  }                                                                                                                   \
  int64_t plane_of_##suffix(int64_t rows, int64_t length, int64_t nodes, int64_t angles, int64_t springs, const T* q, \
                            const T* tangents, const T* directors, const T* twists) {                                 \
    return plane_of<T>(rows, length, nodes, angles, springs, q, tangents, directors, twists);                         \
  }

extern "C" {
INTERFACE(double, float64)
INTERFACE(float, float32)
}
