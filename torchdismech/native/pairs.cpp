// Pairs that may touch: their gaps, their forces, and the derivatives of these, summed over all pairs.
//
// What is found for a pair is a loop of generated code (see `fused`), which is called for some pairs at a time: what it
// reads and finds stays in the nearest cache. Pairs come robot by robot.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

// Robots whose sums of blocks are held side by side: as many as a line of the cache holds of a row of values.
constexpr int64_t TOGETHER = 8;
// Numbers that the sum of a block takes: three rows of four, so that a row is one vector.
constexpr int64_t BLOCK = 12;
// Rows of values between one that is asked for and the one that is written.
constexpr int64_t AHEAD = 24;

// A loop over columns: its inputs, the values that it finds (rows, columns), and the part of the work.
template <typename T>
using Loop = void (*)(int64_t springs, int64_t columns, const int64_t* inputs, T* found, T* none, int64_t begin,
                      int64_t end);

// `count` pairs of so many nodes; pair k is number chosen[k] of a list, or k. Of the list, `robot` and `node` (.., nodes)
// say which robot and nodes a pair has, and given[c] what else it is known by. A robot has `size` coordinates in q and
// velocity. The loop reads `read` (6 nodes + columns, width) and writes `found`.
template <typename T>
struct Pairs {
  int64_t nodes, count, size, width, columns;
  const int64_t *chosen, *robot, *node;
  const T *q, *velocity, *const *given;
  Loop<T> loop;
  const int64_t* inputs;
  T *read, *found;

  int64_t number(int64_t k) const { return chosen ? chosen[k] : k; }
  int64_t robot_of(int64_t k) const { return robot[number(k)]; }

  // Let the loop find its values for the pairs [k, end), no more than `width`; return how many these are.
  int64_t evaluate(int64_t k, int64_t end) const {
    const int64_t pairs = std::min(width, end - k);
    for (int64_t c = 0; c < pairs; ++c) {
      const int64_t p = number(k + c);
      T* column = read + c;
      for (const T* vector : {q, velocity})
        for (int64_t i = 0; i < nodes; ++i)
          for (int64_t a = 0; a < 3; ++a, column += width)
            *column = vector[robot[p] * size + 3 * node[nodes * p + i] + a];
      for (int64_t g = 0; g < columns; ++g, column += width) *column = given[g][p];
    }
    loop(1, pairs, inputs, found, nullptr, 0, 1);
    return pairs;
  }

  // Add the first 3 nodes values of column c of so many, the forces on the nodes of pair k, to total (robots, size).
  void add_force(int64_t k, int64_t c, int64_t pairs, T* total) const {
    const int64_t p = number(k);
    for (int64_t i = 0; i < nodes; ++i)
      for (int64_t a = 0; a < 3; ++a)
        total[robot[p] * size + 3 * node[nodes * p + i] + a] += found[(3 * i + a) * pairs + c];
  }
};

// Where the blocks of pairs of nodes stand. Block (i, j) of the nodes of a pair p of N is number of_pairs[N (N p + i) + j];
// those from `limit` on are left out. Row k of the values (rows, batch) begins as row own[k] of `before`, or as zero, and
// place slot[k] of a robot's sums is added; -1 is for none. Without `own` the sums are added to what stands there.
template <typename T>
struct Matrix {
  int64_t rows, batch, limit;
  const int64_t *of_pairs, *slot, *own;
  const T* before;
  T* values;

  // Write the sums of some robots, one after the other; null if they have none.
  void write(int64_t first, int64_t robots, const T* sums) const {
    for (int64_t k = 0; k < rows; ++k) {
      fetch(k + AHEAD, first);
      T* line = values + k * batch + first;
      if (own) {
        const T* from = own[k] < 0 ? nullptr : before + own[k] * batch + first;
        for (int64_t b = 0; b < robots; ++b) line[b] = from ? from[b] : T(0);
      }
      if (sums && slot[k] >= 0)
        for (int64_t b = 0; b < robots; ++b) line[b] += sums[b * BLOCK * limit + slot[k]];
    }
  }

  // Ask for a line of a row of values, and of what it begins as: rows of large batches are far apart in memory.
  void fetch(int64_t k, int64_t first) const {
    if (k >= rows) return;
    __builtin_prefetch(values + k * batch + first, 1);
    if (own && own[k] >= 0) __builtin_prefetch(before + own[k] * batch + first);
  }
};

// Add w_i w_j M_ab + sum_l left_lia right_ljb of a pair of N nodes to the sums of its robot. Of `pairs` columns this is
// number c; after the forces they hold M, left, right and w.
template <typename T, int64_t N>
void add_blocks(const Matrix<T>& matrix, const T* found, int64_t pairs, int64_t c, int64_t pair, T* sums) {
  typedef T Four __attribute__((vector_size(4 * sizeof(T))));  // the last one is zero
  const T* at = found + 3 * N * pairs + c;
  const auto next = [&] { const T value = *at; at += pairs; return value; };
  const auto three = [&] { const T x = next(), y = next(); return Four{x, y, next(), 0}; };
  Four m[3], r[2 * N];
  T l[6 * N], w[N];
  for (Four& row : m) row = three();
  for (T& number : l) number = next();
  for (Four& row : r) row = three();
  for (T& number : w) number = next();
  for (int64_t i = 0; i < N; ++i) {
    const int64_t* block = matrix.of_pairs + N * (N * pair + i);
    for (int64_t j = 0; j < N; ++j) {
      if (block[j] >= matrix.limit) continue;
      T* sum = sums + BLOCK * block[j];
      for (int64_t a = 0; a < 3; ++a, sum += 4) {
        Four row;
        std::memcpy(&row, sum, sizeof row);
        row += (w[i] * w[j]) * m[a] + l[3 * i + a] * r[j] + l[3 * (N + i) + a] * r[N + j];
        std::memcpy(sum, &row, sizeof row);
      }
    }
  }
}

template <typename T, int64_t N>
void sum_blocks(const Pairs<T>& pairs, const Matrix<T>& matrix, T* total) {
  std::vector<T> sums(BLOCK * matrix.limit * std::min(TOGETHER, matrix.batch));
  int64_t k = 0;
  for (int64_t first = 0; first < matrix.batch; first += TOGETHER) {
    const int64_t robots = std::min(TOGETHER, matrix.batch - first), start = k;
    int64_t end = k;
    while (end < pairs.count && pairs.robot_of(end) < first + robots) ++end;
    if (start < end) std::fill(sums.begin(), sums.end(), T(0));
    while (k < end) {
      const int64_t now = pairs.evaluate(k, end);
      for (int64_t c = 0; c < now; ++c, ++k) {
        pairs.add_force(k, c, now, total);
        T* of_robot = sums.data() + BLOCK * matrix.limit * (pairs.robot_of(k) - first);
        add_blocks<T, N>(matrix, pairs.found, now, c, pairs.number(k), of_robot);
      }
    }
    matrix.write(first, robots, start < end ? sums.data() : nullptr);
  }
}

// Find the number of the block of each two nodes of `count` pairs: that of a robot's nodes i and j is listed[N i + j], or
// with i >= j the place of N i + j among the increasing `keys`, and so many more the other way round. Return whether all
// are there; numbers of others are negative.
inline bool find_blocks(int64_t nodes, int64_t count, const int64_t* node, int64_t robot_nodes, const int64_t* listed,
                        const int64_t* keys, int64_t known, int64_t* of_pairs) {
  int64_t least = 0;
  for (int64_t p = 0; p < count; ++p, node += nodes)
    for (int64_t i = 0; i < nodes; ++i)
      for (int64_t j = 0; j < nodes; ++j, ++of_pairs) {
        if (listed) {
          *of_pairs = listed[robot_nodes * node[i] + node[j]];
        } else {
          const int64_t key = robot_nodes * std::max(node[i], node[j]) + std::min(node[i], node[j]);
          const int64_t* found = std::lower_bound(keys, keys + known, key);
          const bool there = found != keys + known && *found == key;
          *of_pairs = there ? found - keys + (node[i] < node[j] ? known : 0) : -1;
        }
        least = std::min(least, *of_pairs);
      }
  return least == 0;
}

}  // namespace

#define PAIRS(T)                                                                                                      \
  int64_t nodes, int64_t count, int64_t size, int64_t width, int64_t columns, const int64_t *chosen,                  \
      const int64_t *robot, const int64_t *node, const T *q, const T *velocity, const T *const *given, Loop<T> loop,  \
      const int64_t *inputs, T *read, T *found
#define GIVEN {nodes, count, size, width, columns, chosen, robot, node, q, velocity, given, loop, inputs, read, found}

// Pairs have four nodes or eight.
#define INTERFACE(T, suffix)                                                                                          \
  void pair_values_##suffix(PAIRS(T), int64_t rows, T* values) {                                                      \
    const Pairs<T> pairs = GIVEN;                                                                                     \
    for (int64_t k = 0; k < count;) {                                                                                 \
      const int64_t now = pairs.evaluate(k, count);                                                                   \
      for (int64_t r = 0; r < rows; ++r) std::copy(found + r * now, found + (r + 1) * now, values + r * count + k);   \
      k += now;                                                                                                       \
    }                                                                                                                 \
  }                                                                                                                   \
  void pair_forces_##suffix(PAIRS(T), T* total) {                                                                     \
    const Pairs<T> pairs = GIVEN;                                                                                     \
    for (int64_t k = 0; k < count;) {                                                                                 \
      const int64_t now = pairs.evaluate(k, count);                                                                   \
      for (int64_t c = 0; c < now; ++c, ++k) pairs.add_force(k, c, now, total);                                       \
    }                                                                                                                 \
  }                                                                                                                   \
  void pair_blocks_##suffix(PAIRS(T), T* total, int64_t rows, int64_t batch, int64_t limit, const int64_t* of_pairs,  \
                            const int64_t* slot, const int64_t* own, const T* before, T* values) {                         \
    const Pairs<T> pairs = GIVEN;                                                                                     \
    const Matrix<T> matrix = {rows, batch, limit, of_pairs, slot, own, before, values};                               \
    if (nodes == 4)                                                                                                   \
      sum_blocks<T, 4>(pairs, matrix, total);                                                                         \
    else                                                                                                              \
      sum_blocks<T, 8>(pairs, matrix, total);                                                                         \
  }

extern "C" {
INTERFACE(double, float64)
INTERFACE(float, float32)

int64_t blocks_of_pairs(int64_t nodes, int64_t count, const int64_t* node, int64_t robot_nodes, const int64_t* listed,
                        const int64_t* keys, int64_t known, int64_t* of_pairs) {
  return find_blocks(nodes, count, node, robot_nodes, listed, keys, known, of_pairs);
}
}
