// The derivatives of forces between pairs of N nodes, multiplied out and added to the values of sparse matrices.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

// Robots whose values are gathered side by side before they are added: as many as a line of the cache holds.
constexpr int64_t TOGETHER = 8;

// The pairs' arrays have one row for each component, `count` long. Pair k is number chosen[k] of a list, which says its
// robot and where the 3 x 3 block of its nodes i and j stands: row blocks[N (N c + i) + j] of `places` has the rows of
// its nine entries in the values (rows, batch).
template <typename T, int64_t N>
struct Pairs {
  int64_t count;
  bool symmetric;
  const int64_t *chosen, *robot, *blocks, *places;
  const T *weights, *matrix, *left, *right;

  // Add w_i w_j M_ab + sum_l left_lia right_ljb of pair k, of symmetric matrices the lower triangle, to a column whose
  // rows are `stride` apart.
  void add(int64_t k, T* column, int64_t stride) const {
    T w[N], m[9], l[6 * N], r[6 * N];
    for (int64_t i = 0; i < N; ++i) w[i] = weights[i * count + k];
    for (int64_t i = 0; i < 9; ++i) m[i] = matrix[i * count + k];
    for (int64_t i = 0; i < 6 * N; ++i) l[i] = left[i * count + k];
    for (int64_t i = 0; i < 6 * N; ++i) r[i] = right[i * count + k];
    const int64_t* block = blocks + N * N * chosen[k];
    for (int64_t i = 0; i < N; ++i) {
      for (int64_t j = 0; j < (symmetric ? i + 1 : N); ++j) {
        const int64_t* at = places + 9 * block[N * i + j];
        const T both = w[i] * w[j];
        for (int64_t a = 0; a < 3; ++a)
          for (int64_t b = 0; b < (symmetric && i == j ? a + 1 : 3); ++b)
            column[at[3 * a + b] * stride] +=
                both * m[3 * a + b] + l[3 * i + a] * r[3 * j + b] + l[3 * (N + i) + a] * r[3 * (N + j) + b];
      }
    }
  }
};

// Pairs come robot by robot. Where they hit each row of the values more than once, those of a few robots are summed in
// columns of their own, which a cache holds, and then added line by line.
template <typename T, int64_t N>
void add_blocks(const Pairs<T, N>& pairs, int64_t rows, int64_t batch, T* values) {
  std::vector<T> columns;
  const auto robot = [&](int64_t k) { return pairs.robot[pairs.chosen[k]]; };
  for (int64_t k = 0, end; k < pairs.count; k = end) {
    const int64_t first = robot(k), together = std::min(TOGETHER, batch - first);
    for (end = k; end < pairs.count && robot(end) < first + together;) ++end;
    if (batch == 1 || (end - k) * 100 < rows * together) {
      for (; k < end; ++k) pairs.add(k, values + robot(k), batch);
      continue;
    }
    columns.assign(together * rows, T(0));
    for (; k < end; ++k) pairs.add(k, columns.data() + (robot(k) - first) * rows, 1);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t b = 0; b < together; ++b) values[row * batch + first + b] += columns[b * rows + row];
  }
}

}  // namespace

// Pairs have four nodes or eight.
#define INTERFACE(T, suffix)                                                                                          \
  void add_blocks_##suffix(int64_t nodes, int64_t count, int64_t rows, int64_t batch, int64_t symmetric,              \
                           const int64_t* chosen, const int64_t* robot, const int64_t* blocks, const int64_t* places, \
                           const T* weights, const T* matrix, const T* left, const T* right, T* values) {             \
    if (nodes == 4)                                                                                                   \
      add_blocks(                                                                                                     \
          Pairs<T, 4>{count, symmetric != 0, chosen, robot, blocks, places, weights, matrix, left, right},            \
          rows, batch, values);                                                                                       \
    else                                                                                                              \
      add_blocks(                                                                                                     \
          Pairs<T, 8>{count, symmetric != 0, chosen, robot, blocks, places, weights, matrix, left, right},            \
          rows, batch, values);                                                                                       \
  }

extern "C" {
INTERFACE(double, float64)
INTERFACE(float, float32)
}
