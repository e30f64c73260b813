// Shifts of nodes whose differences along edges are as close as possible to wanted changes of the edges. Where the
// edges form trees, each with one fixed node or none, every edge gets its change exactly, from node to node. Otherwise
// it is a least-squares problem, solved by a banded factor of the network's Laplacian that all columns share. A column
// is one component in space of one robot.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

// Columns that are solved side by side: WIDE for many robots, NARROW for few.
constexpr int64_t WIDE = 32, NARROW = 8;

// The network. `place` (N): index of a node among the K that are solved for, -1 for others. `part` (N): index of the
// connected part without a fixed node that it belongs to, -1 for none; the nodes of such a part keep their mean. `ends`
// (E, 2): the nodes of the edges. `factor` (K, reach + 1): of L D L^T by columns, the inverse of D's entry, then the
// entries of L below the diagonal.
template <typename T>
struct Network {
  int64_t nodes, edges, solved, parts, reach;
  const int64_t *place, *part, *ends;
  const T* factor;
};

// Solve for WIDTH columns in place; y (K, WIDTH) holds the sums of the signed changes of the edges at the nodes.
template <int64_t WIDTH, typename T>
void solve(const Network<T>& net, T* y) {
  const int64_t size = net.reach + 1;
  for (int64_t j = 0; j < net.solved; ++j) {
    const T *from = y + j * WIDTH, *below = net.factor + j * size;
    for (int64_t h = 1; h < size && j + h < net.solved; ++h)
      for (int64_t k = 0; k < WIDTH; ++k) y[(j + h) * WIDTH + k] -= below[h] * from[k];
  }
  for (int64_t j = net.solved - 1; j >= 0; --j) {
    T* to = y + j * WIDTH;
    const T* below = net.factor + j * size;
    T sum[WIDTH];
    for (int64_t k = 0; k < WIDTH; ++k) sum[k] = to[k] * below[0];
    for (int64_t h = 1; h < size && j + h < net.solved; ++h)
      for (int64_t k = 0; k < WIDTH; ++k) sum[k] -= below[h] * y[(j + h) * WIDTH + k];
    for (int64_t k = 0; k < WIDTH; ++k) to[k] = sum[k];
  }
}

// The mean shifts (P, WIDTH) of the parts without a fixed node.
template <int64_t WIDTH, typename T>
void find_means(const Network<T>& net, const T* y, T* mean, T* count) {
  std::fill(mean, mean + net.parts * WIDTH, T(0));
  std::fill(count, count + net.parts, T(0));
  for (int64_t node = 0; node < net.nodes; ++node) {
    const int64_t part = net.part[node], place = net.place[node];
    if (part < 0) continue;
    count[part] += 1;
    if (place >= 0)
      for (int64_t k = 0; k < WIDTH; ++k) mean[part * WIDTH + k] += y[place * WIDTH + k];
  }
  for (int64_t part = 0; part < net.parts; ++part)
    for (int64_t k = 0; k < WIDTH; ++k) mean[part * WIDTH + k] /= count[part];
}

// Columns [first, first + count) of changes (axes, E, B) and shifts (axes, N, B): `of` is the offset of column k.
struct Columns {
  int64_t robots, first, count;
  int64_t of(int64_t k, int64_t rows) const {
    return (first + k) / robots * rows * robots + (first + k) % robots;
  }
  bool in_a_row() const { return first / robots == (first + count - 1) / robots; }
};

template <int64_t WIDTH, typename T>
void shift(const Network<T>& net, const Columns& at, const T* changes, T* shifts, T* y, T* mean, T* count) {
  const bool whole = at.count == WIDTH && at.in_a_row();
  int64_t from[WIDTH] = {}, to[WIDTH] = {};
  for (int64_t k = 0; k < at.count; ++k) from[k] = at.of(k, net.edges), to[k] = at.of(k, net.nodes);
  std::fill(y, y + net.solved * WIDTH, T(0));
  for (int64_t edge = 0; edge < net.edges; ++edge) {
    T change[WIDTH] = {};
    const T* row = changes + edge * at.robots;
    if (whole) {
      for (int64_t k = 0; k < WIDTH; ++k) change[k] = row[from[0] + k];
    } else {
      for (int64_t k = 0; k < at.count; ++k) change[k] = row[from[k]];
    }
    const int64_t start = net.place[net.ends[2 * edge]], end = net.place[net.ends[2 * edge + 1]];
    if (end >= 0)
      for (int64_t k = 0; k < WIDTH; ++k) y[end * WIDTH + k] += change[k];
    if (start >= 0)
      for (int64_t k = 0; k < WIDTH; ++k) y[start * WIDTH + k] -= change[k];
  }
  solve<WIDTH>(net, y);
  find_means<WIDTH>(net, y, mean, count);
  for (int64_t node = 0; node < net.nodes; ++node) {
    T moved[WIDTH] = {};
    const int64_t place = net.place[node], part = net.part[node];
    if (place >= 0)
      for (int64_t k = 0; k < WIDTH; ++k) moved[k] = y[place * WIDTH + k];
    if (part >= 0)
      for (int64_t k = 0; k < WIDTH; ++k) moved[k] -= mean[part * WIDTH + k];
    T* row = shifts + node * at.robots;
    if (whole) {
      for (int64_t k = 0; k < WIDTH; ++k) row[to[0] + k] = moved[k];
    } else {
      for (int64_t k = 0; k < at.count; ++k) row[to[k]] = moved[k];
    }
  }
}

template <int64_t WIDTH, typename T>
void shift_all(const Network<T>& net, int64_t axes, int64_t robots, const T* changes, T* shifts, int64_t first,
               int64_t last) {
  std::vector<T> y(net.solved * WIDTH), mean(net.parts * WIDTH), count(net.parts);
  for (int64_t block = first; block < last; ++block) {
    const int64_t begin = block * WIDTH;
    const Columns at = {robots, begin, std::min(WIDTH, axes * robots - begin)};
    shift<WIDTH>(net, at, changes, shifts, y.data(), mean.data(), count.data());
  }
}

// Trees of edges. `step` (K, 3): a node, the one before it on its tree, and the edge between them, ~edge if the edge
// runs backward. `still` (S): nodes where trees begin, with shift zero. `part` (N): as in a network.
struct Trees {
  int64_t nodes, edges, steps, stills, parts;
  const int64_t *step, *still, *part;
};

// Add up the changes along the trees, for robots [first, last) of all; ALONE: there is only one robot.
template <bool ALONE, typename T>
void go_along(const Trees& trees, int64_t robots, const T* changes, T* shifts, int64_t first, int64_t last) {
  if (ALONE) robots = 1, first = 0, last = 1;  // takes a third of the time if the compiler knows it
  for (int64_t k = 0; k < trees.stills; ++k)
    for (int64_t r = first; r < last; ++r) shifts[trees.still[k] * robots + r] = 0;
  for (int64_t k = 0; k < trees.steps; ++k) {
    const int64_t node = trees.step[3 * k], before = trees.step[3 * k + 1], edge = trees.step[3 * k + 2];
    const T *from = shifts + before * robots, *change = changes + (edge < 0 ? ~edge : edge) * robots;
    const T sign = edge < 0 ? T(-1) : T(1);
    T* to = shifts + node * robots;
    for (int64_t r = first; r < last; ++r) to[r] = from[r] + sign * change[r];
  }
}

// Move each part without a fixed node so that its mean shift is zero.
template <typename T>
void keep_means(const Trees& trees, int64_t robots, T* shifts, int64_t first, int64_t last) {
  const int64_t width = last - first;
  std::vector<T> mean(trees.parts * width), count(trees.parts);
  for (int64_t node = 0; node < trees.nodes; ++node) {
    if (trees.part[node] < 0) continue;
    count[trees.part[node]] += 1;
    T* sum = mean.data() + trees.part[node] * width;
    for (int64_t r = 0; r < width; ++r) sum[r] += shifts[node * robots + first + r];
  }
  for (int64_t k = 0; k < trees.parts * width; ++k) mean[k] /= count[k / width];
  for (int64_t node = 0; node < trees.nodes; ++node) {
    if (trees.part[node] < 0) continue;
    const T* less = mean.data() + trees.part[node] * width;
    for (int64_t r = 0; r < width; ++r) shifts[node * robots + first + r] -= less[r];
  }
}

template <typename T>
void shift_trees(const Trees& trees, int64_t axes, int64_t robots, const T* changes, T* shifts, int64_t first,
                 int64_t last) {
  for (int64_t axis = 0; axis < axes; ++axis) {
    T* own = shifts + axis * trees.nodes * robots;
    const auto go = robots == 1 ? go_along<true, T> : go_along<false, T>;
    go(trees, robots, changes + axis * trees.edges * robots, own, first, last);
    if (trees.parts) keep_means(trees, robots, own, first, last);
  }
}

inline bool are_wide(int64_t axes, int64_t robots) { return axes * robots >= WIDE; }

}  // namespace

#define INTERFACE(T, suffix)                                                                                          \
  void node_shifts_##suffix(int64_t axes, int64_t robots, int64_t nodes, int64_t edges, int64_t solved,               \
                            int64_t parts, int64_t reach, const int64_t* place, const int64_t* part,                  \
                            const int64_t* ends, const T* factor, const T* changes, T* shifts, int64_t first,         \
                            int64_t last) {                                                                           \
    const Network<T> net = {nodes, edges, solved, parts, reach, place, part, ends, factor};                           \
    (are_wide(axes, robots) ? shift_all<WIDE, T> : shift_all<NARROW, T>)(net, axes, robots, changes, shifts, first,   \
                                                                         last);                                       \
  }                                                                                                                   \
  void tree_shifts_##suffix(int64_t axes, int64_t robots, int64_t nodes, int64_t edges, int64_t steps,                \
                            int64_t stills, int64_t parts, const int64_t* step, const int64_t* still,                 \
                            const int64_t* part, const T* changes, T* shifts, int64_t first, int64_t last) {          \
    shift_trees<T>({nodes, edges, steps, stills, parts, step, still, part}, axes, robots, changes, shifts, first,     \
                   last);                                                                                             \
  }

extern "C" {
// The number of blocks of columns, which are the parts that `node_shifts` is called for.
int64_t node_shift_blocks(int64_t axes, int64_t robots) {
  const int64_t width = are_wide(axes, robots) ? WIDE : NARROW;
  return (axes * robots + width - 1) / width;
}
INTERFACE(double, float64)
INTERFACE(float, float32)
}
