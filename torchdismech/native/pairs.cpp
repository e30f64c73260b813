// Sums over pairs that may touch: their gaps, forces, and derivatives of the forces.
//
// The formulas of a pair are a loop of generated code (see `fused`), which is called for some pairs at a time, so that
// its inputs and results stay in the first cache. Pairs are sorted by robot. `contact/pairs/pair_calls.py` makes the
// arguments; the structures here are arrays of integers and addresses there (`Structure`).
//
// Several threads may call a function at once, each for other groups of TOGETHER robots; so each call has memory of its
// own for what loops read and write.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

namespace {

// Robots whose sums of blocks are held at the same time: as many as a cache line holds numbers of a row of values.
constexpr int64_t TOGETHER = 8;
// Numbers that the sum of a block takes: three rows of four, so that a row is one vector.
constexpr int64_t BLOCK = 12;
// How many rows of values ahead of the one being written are prefetched.
constexpr int64_t AHEAD = 24;

// Number of pairs for which a loop is called at once.
constexpr int64_t WIDTH = 32;
// Numbers that searches know about friction of a pair: traction, normal and velocity, of three components each.
constexpr int64_t KNOWN = 9;
// Numbers of an input in the table of a loop (`Input` in vectors.h); the first is its address.
constexpr int64_t INPUT = 5;

// A compiled loop over columns, one for each pair: the code reads `count` inputs, which are rows of the table `inputs`,
// and writes `rows` rows of values.
template <typename T>
struct Loop {
  void (*code)(int64_t springs, int64_t columns, const int64_t* inputs, T* found, T* none, int64_t begin, int64_t end);
  const int64_t* inputs;
  int64_t count, rows;
};

// `count` pairs of `nodes` nodes each: `robot` (count) and `node` (count, nodes) are their robots and nodes, given[c]
// (count) further inputs, and `place` (count) the rows of what searches know about them; null if they know nothing.
// Loops are bound to inputs at `read` (6 nodes + columns + KNOWN, WIDTH).
template <typename T>
struct Pairs {
  int64_t nodes, count, columns;
  const int64_t *robot, *node, *place;
  const T* const* given;
  T* read;

  int64_t numbers_read() const { return (6 * nodes + columns + KNOWN) * WIDTH; }
  // The first pair of a robot or a later one.
  int64_t first_of(int64_t of) const { return std::lower_bound(robot, robot + count, of) - robot; }
};

// A range of pairs, or of a list of pairs.
struct Range {
  int64_t begin, end;
};

// Pairs with positions q and velocities, of `size` coordinates per robot, and what searches know about friction there.
template <typename T>
class Placed {
 public:
  const Pairs<T>& pairs;

  Placed(const Pairs<T>& of, int64_t coordinates, const T* at, const T* moving, const T* friction)
      : pairs(of), size(coordinates), q(at), velocity(moving), known(friction), read(new T[of.numbers_read()]) {}

  // Call a loop for a range of the pairs, or of the list `chosen` of their indices, and for each pair take(its place in
  // the list, its index, pointer to its first value, distance between its values).
  template <typename Take>
  void each(const Loop<T>& loop, const int64_t* chosen, Range range, const Take& take) const {
    const std::vector<int64_t> inputs = own_inputs(loop);
    const std::unique_ptr<T[]> found(new T[loop.rows * WIDTH]);
    for (int64_t k = range.begin; k < range.end; k += WIDTH) {
      const int64_t many = std::min(WIDTH, range.end - k);
      gather(k, chosen ? chosen + k : nullptr, many);
      loop.code(1, many, inputs.data(), found.get(), nullptr, 0, 1);
      for (int64_t c = 0; c < many; ++c) take(k + c, chosen ? chosen[k + c] : k + c, found.get() + c, many);
    }
  }

  // The indices of the pairs of some robots that touch: those for which the value of `slack` is negative.
  std::vector<int64_t> touching(const Loop<T>& slack, Range robots) const {
    std::vector<int64_t> found;
    each(slack, nullptr, pairs_of(robots), [&](int64_t, int64_t p, const T* value, int64_t) {
      if (*value < 0) found.push_back(p);
    });
    return found;
  }

  Range pairs_of(Range robots) const { return {pairs.first_of(robots.begin), pairs.first_of(robots.end)}; }

  // Add the forces on the nodes of a pair to total (robots, size); the numbers of `force` are `apart` from each other.
  void add_force(int64_t p, const T* force, int64_t apart, T* total) const {
    const int64_t* node = pairs.node + pairs.nodes * p;
    for (int64_t i = 0; i < pairs.nodes; ++i)
      for (int64_t a = 0; a < 3; ++a, force += apart) total[pairs.robot[p] * size + 3 * node[i] + a] += *force;
  }

 private:
  const int64_t size;
  const T *const q, *const velocity, *const known;
  const std::unique_ptr<T[]> read;  // as `pairs.read`, for this call alone

  // The inputs of a loop, with those at `pairs.read` at `read` in place of it.
  std::vector<int64_t> own_inputs(const Loop<T>& loop) const {
    std::vector<int64_t> inputs(loop.inputs, loop.inputs + INPUT * loop.count);
    const int64_t bound = reinterpret_cast<int64_t>(pairs.read), bytes = sizeof(T) * pairs.numbers_read();
    for (int64_t k = 0; k < INPUT * loop.count; k += INPUT)
      if (inputs[k] >= bound && inputs[k] < bound + bytes) inputs[k] += reinterpret_cast<int64_t>(read.get()) - bound;
    return inputs;
  }

  // Write the inputs of `many` pairs, no more than WIDTH: those with indices chosen[0], ... or first, first + 1, ...
  void gather(int64_t first, const int64_t* chosen, int64_t many) const {
    for (int64_t c = 0; c < many; ++c) {
      const int64_t p = chosen ? chosen[c] : first + c, *node = pairs.node + pairs.nodes * p;
      T* column = read.get() + c;
      for (const T* vector : {q, velocity})
        for (int64_t i = 0; i < pairs.nodes; ++i)
          for (int64_t a = 0; a < 3; ++a, column += WIDTH) *column = vector[pairs.robot[p] * size + 3 * node[i] + a];
      for (int64_t g = 0; g < pairs.columns; ++g, column += WIDTH) *column = pairs.given[g][p];
      if (known)
        for (int64_t a = 0; a < KNOWN; ++a, column += WIDTH) *column = known[KNOWN * pairs.place[p] + a];
    }
  }
};

// Where the blocks of pairs of nodes go. Block (i, j) of the N nodes of pair p has index pair_blocks[N (N p + i) + j];
// blocks with indices from `limit` on are left out. Row k of the values (rows, batch) is row from_base[k] of `before`,
// or zero, plus number from_sums[k] of a robot's sums; -1 stands for none. Without `before` the sums are added to the
// values that are there.
struct Blocks {
  int64_t rows, limit;
  const int64_t* pair_blocks;
  const int32_t *from_sums, *from_base;
};
template <typename T>
struct Matrix {
  const Blocks& blocks;
  int64_t batch;
  const T* before;
  T* values;

  // Write the values of some robots, with the sums of their blocks; null if none of their pairs touches.
  void write(int64_t first, int64_t robots, const T* sums) const {
    if (robots == TOGETHER)
      write_rows(first, std::integral_constant<int64_t, TOGETHER>(), sums);
    else
      write_rows(first, robots, sums);
  }

  template <typename Count>
  void write_rows(int64_t first, Count robots, const T* sums) const {
    for (int64_t k = 0; k < blocks.rows; ++k) {
      if (batch > robots) fetch(k + AHEAD, first);
      T* line = values + k * batch + first;
      if (before) {
        const T* from = blocks.from_base[k] < 0 ? nullptr : before + blocks.from_base[k] * batch + first;
        for (int64_t b = 0; b < robots; ++b) line[b] = from ? from[b] : T(0);
      }
      if (sums && blocks.from_sums[k] >= 0)
        for (int64_t b = 0; b < robots; ++b) line[b] += sums[b * BLOCK * blocks.limit + blocks.from_sums[k]];
    }
  }

  // Prefetch a cache line of a row of values, and of `before`: rows of large batches are far apart in memory.
  void fetch(int64_t k, int64_t first) const {
    if (k >= blocks.rows) return;
    __builtin_prefetch(values + k * batch + first, 1);
    if (before && blocks.from_base[k] >= 0) __builtin_prefetch(before + blocks.from_base[k] * batch + first);
  }
};

// Add the blocks w_i w_j M_ab + sum_l left_lia right_ljb of a pair of N nodes to the sums of its robot. Its values,
// which are `apart` from each other, are the forces, then M, left, right and w.
template <typename T, int64_t N>
void add_blocks(const Matrix<T>& matrix, int64_t pair, const T* found, int64_t apart, T* sums) {
  typedef T Four __attribute__((vector_size(4 * sizeof(T))));  // the last one is zero
  const T* at = found + 3 * N * apart;
  const auto next = [&] { const T value = *at; at += apart; return value; };
  const auto three = [&] { const T x = next(), y = next(); return Four{x, y, next(), 0}; };
  Four m[3], r[2 * N];
  T l[6 * N], w[N];
  for (Four& row : m) row = three();
  for (T& number : l) number = next();
  for (Four& row : r) row = three();
  for (T& number : w) number = next();
  for (int64_t i = 0; i < N; ++i) {
    const int64_t* block = matrix.blocks.pair_blocks + N * (N * pair + i);
    for (int64_t j = 0; j < N; ++j) {
      if (block[j] >= matrix.blocks.limit) continue;
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

// Add the product of numbers by the nodes (robots, size) with the blocks of a pair of N nodes, as in `add_blocks`, to
// total (robots, size): to coordinate b of node j what the coordinates a of all nodes i give, times entry (i a, j b).
template <typename T, int64_t N>
void add_product(const Pairs<T>& pairs, int64_t size, int64_t pair, const T* found, int64_t apart, const T* by_nodes,
                 T* total) {
  const T *m = found + 3 * N * apart, *l = m + 9 * apart, *r = l + 6 * N * apart, *w = r + 6 * N * apart;
  T mean[3] = {}, by_left[2] = {};
  int64_t at[N];
  for (int64_t i = 0; i < N; ++i) {
    at[i] = pairs.robot[pair] * size + 3 * pairs.node[N * pair + i];
    for (int64_t a = 0; a < 3; ++a) {
      mean[a] += w[i * apart] * by_nodes[at[i] + a];
      for (int64_t k = 0; k < 2; ++k) by_left[k] += l[(3 * (N * k + i) + a) * apart] * by_nodes[at[i] + a];
    }
  }
  for (int64_t j = 0; j < N; ++j)
    for (int64_t b = 0; b < 3; ++b) {
      T product = 0;
      for (int64_t a = 0; a < 3; ++a) product += m[(3 * a + b) * apart] * mean[a];
      product *= w[j * apart];
      for (int64_t k = 0; k < 2; ++k) product += by_left[k] * r[(3 * (N * k + j) + b) * apart];
      total[at[j] + b] += product;
    }
}

// Add the forces of the pairs of some robots that touch, with indices near[0], ..., to total (robots, size), and write
// the matrices of these robots with the pairs' blocks.
template <typename T, int64_t N>
void sum_blocks(const Placed<T>& at, const std::vector<int64_t>& near, const Loop<T>& loop, const Matrix<T>& matrix,
                Range of, T* total) {
  const int64_t numbers = BLOCK * matrix.blocks.limit * std::min(TOGETHER, of.end - of.begin);
  const std::unique_ptr<T[]> sums(new T[numbers]);  // not initialised
  const int64_t *robot = at.pairs.robot, count = near.size();
  int64_t begin = 0;
  for (int64_t first = of.begin; first < of.end; first += TOGETHER) {
    const int64_t robots = std::min(TOGETHER, of.end - first);
    int64_t end = begin;
    while (end < count && robot[near[end]] < first + robots) ++end;
    if (begin < end) std::fill(sums.get(), sums.get() + numbers, T(0));
    at.each(loop, near.data(), {begin, end}, [&](int64_t, int64_t p, const T* found, int64_t apart) {
      at.add_force(p, found, apart, total);
      add_blocks<T, N>(matrix, p, found, apart, sums.get() + BLOCK * matrix.blocks.limit * (robot[p] - first));
    });
    matrix.write(first, robots, begin < end ? sums.get() : nullptr);
    begin = end;
  }
}

// Find the index of the block of each two nodes of `count` pairs. With N nodes in a robot, the block of its nodes i
// and j has index listed[N i + j]; without `listed`, for i >= j the position of N i + j among the increasing `keys`,
// and for i < j that of block (j, i) plus `known`. Return whether all are found; stop at the first that is not.
inline bool find_blocks(int64_t nodes, int64_t count, const int64_t* node, int64_t robot_nodes, const int64_t* listed,
                        const int64_t* keys, int64_t known, int64_t* of_pairs) {
  for (int64_t p = 0; p < count; ++p, node += nodes)
    for (int64_t i = 0; i < nodes; ++i)
      for (int64_t j = 0; j < nodes; ++j, ++of_pairs) {
        if (listed) {
          *of_pairs = listed[robot_nodes * node[i] + node[j]];
          if (*of_pairs < 0) return false;
        } else {
          const int64_t key = robot_nodes * std::max(node[i], node[j]) + std::min(node[i], node[j]);
          const int64_t* found = std::lower_bound(keys, keys + known, key);
          if (found == keys + known || *found != key) return false;
          *of_pairs = found - keys + (node[i] < node[j] ? known : 0);
        }
      }
  return true;
}

}  // namespace

#define PLACED(T) const Pairs<T>*pairs, int64_t size, const T *q, const T *velocity, const T *known
#define GIVEN {*pairs, size, q, velocity, known}
#define GROUPS int64_t first, int64_t last  // of TOGETHER robots
#define ROBOTS Range{TOGETHER * first, TOGETHER * last}

// Pairs have four nodes or eight.
#define INTERFACE(T, suffix)                                                                                          \
  void pair_values_##suffix(PLACED(T), const Loop<T>* loop, T* values, int64_t first, int64_t last) {                 \
    const Range range = {WIDTH * first, std::min(WIDTH * last, pairs->count)};                                        \
    Placed<T> GIVEN.each(*loop, nullptr, range, [&](int64_t, int64_t p, const T* found, int64_t apart) {              \
      for (int64_t r = 0; r < loop->rows; ++r) values[r * pairs->count + p] = found[r * apart];                       \
    });                                                                                                               \
  }                                                                                                                   \
  void pair_summary_##suffix(PLACED(T), const Loop<T>* slack, const Loop<T>* loop, T* summary, T* total, GROUPS) {    \
    const Placed<T> at = GIVEN;                                                                                       \
    const std::vector<int64_t> near = at.touching(*slack, ROBOTS);                                                    \
    const int64_t count = near.size();                                                                                \
    at.each(*loop, near.data(), {0, count}, [&](int64_t, int64_t p, const T* found, int64_t apart) {                  \
      T* of_robot = summary + 4 * pairs->robot[p];                                                                    \
      of_robot[0] += 1;                                                                                               \
      of_robot[1] += found[2 * apart];                                                                                \
      of_robot[2] = std::max(of_robot[2], -found[0]);                                                                 \
      of_robot[3] += found[apart];                                                                                    \
      at.add_force(p, found + 3 * apart, apart, total);                                                               \
    });                                                                                                               \
  }                                                                                                                   \
  void pair_known_##suffix(PLACED(T), const Loop<T>* loop, T* now, GROUPS) {                                          \
    const Placed<T> at = GIVEN;                                                                                       \
    at.each(*loop, nullptr, at.pairs_of(ROBOTS), [&](int64_t, int64_t p, const T* found, int64_t apart) {             \
      for (int64_t a = 0; a < KNOWN; ++a) now[KNOWN * pairs->place[p] + a] = found[a * apart];                        \
    });                                                                                                               \
  }                                                                                                                   \
  void pair_least_##suffix(PLACED(T), const Loop<T>* loop, T* least, GROUPS) {                                        \
    const Placed<T> at = GIVEN;                                                                                       \
    at.each(*loop, nullptr, at.pairs_of(ROBOTS), [&](int64_t, int64_t p, const T* found, int64_t) {                   \
      T& of_robot = least[pairs->robot[p]];                                                                           \
      if (*found < of_robot || *found != *found) of_robot = *found;                                                   \
    });                                                                                                               \
  }                                                                                                                   \
  void pair_forces_##suffix(PLACED(T), const Loop<T>* slack, const Loop<T>* loop, T* total, GROUPS) {                 \
    const Placed<T> at = GIVEN;                                                                                       \
    const std::vector<int64_t> near = at.touching(*slack, ROBOTS);                                                    \
    const int64_t count = near.size();                                                                                \
    at.each(*loop, near.data(), {0, count},                                                                           \
            [&](int64_t, int64_t p, const T* found, int64_t apart) { at.add_force(p, found, apart, total); });        \
  }                                                                                                                   \
  void pair_product_##suffix(PLACED(T), const Loop<T>* slack, const Loop<T>* loop, const T* by_nodes, T* total,       \
                             GROUPS) {                                                                                \
    const Placed<T> at = GIVEN;                                                                                       \
    const std::vector<int64_t> near = at.touching(*slack, ROBOTS);                                                    \
    const int64_t count = near.size();                                                                                \
    at.each(*loop, near.data(), {0, count}, [&](int64_t, int64_t p, const T* found, int64_t apart) {                  \
      (pairs->nodes == 4 ? add_product<T, 4> : add_product<T, 8>)(*pairs, size, p, found, apart, by_nodes, total);    \
    });                                                                                                               \
  }                                                                                                                   \
  void pair_blocks_##suffix(PLACED(T), const Loop<T>* slack, const Loop<T>* loop, T* total, const Blocks* blocks,     \
                            int64_t batch, const T* before, T* values, GROUPS) {                                      \
    const Placed<T> at = GIVEN;                                                                                       \
    const Matrix<T> matrix = {*blocks, batch, before, values};                                                        \
    const Range robots = {TOGETHER * first, std::min(TOGETHER * last, batch)};                                        \
    (pairs->nodes == 4 ? sum_blocks<T, 4> : sum_blocks<T, 8>)(at, at.touching(*slack, robots), *loop, matrix, robots, \
                                                              total);                                                 \
  }

extern "C" {
INTERFACE(double, float64)
INTERFACE(float, float32)

int64_t blocks_of_pairs(int64_t nodes, int64_t count, const int64_t* node, int64_t robot_nodes, const int64_t* listed,
                        const int64_t* keys, int64_t known, int64_t* of_pairs) {
  return find_blocks(nodes, count, node, robot_nodes, listed, keys, known, of_pairs);
}
}
