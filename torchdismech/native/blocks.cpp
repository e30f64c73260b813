// The derivatives of forces between pairs of four nodes, multiplied out and added to the values of sparse matrices.

#include <cstdint>

namespace {

// Pair k of those from `begin` up to `end` is number chosen[k] of a list, which says its robot and where the 3 x 3 block
// of its nodes i and j stands: row blocks[16 c + 4 i + j] of `places`. There its nine entries are given as rows of the
// values (nnz, batch). What of pair k is added is w_i w_j M_ab + sum_l left_lia right_ljb; of symmetric matrices the
// lower triangle. All arrays of the pairs have one row for each component, `count` long.
template <typename T>
void add_blocks(int64_t count, int64_t batch, int64_t symmetric, const int64_t* chosen, const int64_t* robot,
                const int64_t* blocks, const int64_t* places, const T* weights, const T* matrix, const T* left,
                const T* right, T* values, int64_t begin, int64_t end) {
  for (int64_t k = begin; k < end; ++k) {
    T w[4], m[9], l[24], r[24];
    for (int64_t i = 0; i < 4; ++i) w[i] = weights[i * count + k];
    for (int64_t i = 0; i < 9; ++i) m[i] = matrix[i * count + k];
    for (int64_t i = 0; i < 24; ++i) l[i] = left[i * count + k];
    for (int64_t i = 0; i < 24; ++i) r[i] = right[i * count + k];
    const int64_t* block = blocks + 16 * chosen[k];
    T* column = values + robot[chosen[k]];
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t j = 0; j < (symmetric ? i + 1 : 4); ++j) {
        const int64_t* at = places + 9 * block[4 * i + j];
        const T both = w[i] * w[j];
        for (int64_t a = 0; a < 3; ++a)
          for (int64_t b = 0; b < (symmetric && i == j ? a + 1 : 3); ++b)
            column[at[3 * a + b] * batch] +=
                both * m[3 * a + b] + l[3 * i + a] * r[3 * j + b] + l[12 + 3 * i + a] * r[12 + 3 * j + b];
      }
    }
  }
}

}  // namespace

#define INTERFACE(T, suffix)                                                                                          \
  void add_blocks_##suffix(int64_t count, int64_t batch, int64_t symmetric, const int64_t* chosen,                    \
                           const int64_t* robot, const int64_t* blocks, const int64_t* places, const T* weights,      \
                           const T* matrix, const T* left, const T* right, T* values, int64_t begin, int64_t end) {   \
    add_blocks<T>(count, batch, symmetric, chosen, robot, blocks, places, weights, matrix, left, right, values, begin, \
                  end);                                                                                               \
  }

extern "C" {
INTERFACE(double, float64)
INTERFACE(float, float32)
}
