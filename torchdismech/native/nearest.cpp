// The nearest triangle of a mesh to each of many points; see `contact/obstacles/nearest.py`.
//
// Each point goes down the hierarchy of discs alone, first into the group with the smallest lower bound, so that a few
// triangles soon give a distance that leaves out nearly all other groups. Distances from triangles are computed by the
// operations of `nearest._square_distance` in their order, and not contracted to fused multiply-adds, so that the same
// one of two triangles with a common edge is the nearest as by operations of torch.

#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif

#include <cmath>
#include <cstdint>
#include <limits>

namespace {

constexpr int64_t MOST = 64;      // groups at the first level; there are fewer in a group of the levels below
constexpr double ROUNDINGS = 16;  // by which bounds may be wrong, of the largest coordinate

// A level of the hierarchy: discs (8, count) and the consecutive groups of the next level in each group, (count, width)
// padded by -1.
template <typename T>
struct Level {
  int64_t count;
  const T* discs;
  int64_t width;
  const int64_t* children;
};

// The levels, of which the last has single triangles, with their frames (21, count) and numbers.
template <typename T>
struct Hierarchy {
  const Level<T>* levels;
  int64_t depth, triangles;
  const T* frames;
  const int64_t* order;
};

template <typename T>
inline T smaller(T a, T b) {
  return b < a ? b : a;
}

template <typename T>
inline T positive(T a) {
  return a > T(0) ? a : T(0);
}

// The square of the distance from an edge, in its plane.
template <typename T>
inline T to_edge(T along, T across, T length) {
  const T past = along - smaller(positive(along), length);
  return past * past + across * across;
}

template <typename T>
class Search {
 public:
  int64_t nearest;

  Search(const Hierarchy<T>& in, T extent) : in(in), extent(extent) {}

  void find(const T* point) {
    x = point[0], y = point[1], z = point[2];
    slack = T(ROUNDINGS) * std::numeric_limits<T>::epsilon() * (std::fabs(x) + std::fabs(y) + std::fabs(z) + extent);
    least = reach = std::numeric_limits<T>::infinity();
    nearest = in.order[0];
    descend(0, 0, in.levels[0].count);
  }

 private:
  const Hierarchy<T>& in;
  const T extent;
  // square of the distance from the nearest triangle so far; and of how far away others may be that could be nearer
  T x, y, z, slack, least, reach;

  void descend(int64_t depth, int64_t begin, int64_t end) {
    if (depth + 1 == in.depth) return measure(begin, end);
    const Level<T>& level = in.levels[depth];
    T lower[MOST], upper[MOST];
    bound(level, begin, end, lower, upper);
    T farthest = upper[0];
    for (int64_t k = 1; k < end - begin; ++k) farthest = smaller(farthest, upper[k]);
    shorten(farthest);
    int64_t left = 0, group[MOST];
    for (int64_t k = 0; k < end - begin; ++k)
      if (lower[k] <= reach) lower[left] = lower[k], group[left++] = begin + k;
    while (left) {
      int64_t next = 0;
      for (int64_t k = 1; k < left; ++k)
        if (lower[k] < lower[next]) next = k;
      if (lower[next] > reach) return;
      const int64_t* children = level.children + group[next] * level.width;
      int64_t count = level.width;
      while (children[count - 1] < 0) --count;
      lower[next] = lower[--left], group[next] = group[left];
      descend(depth + 1, children[0], children[0] + count);
    }
  }

  // No triangle counts whose distance is more than that with this square.
  void shorten(T square) {
    const T distance = std::sqrt(square) + slack;
    reach = smaller(reach, distance * distance);
  }

  // Squares of lower and upper bounds of the distances from the nearest triangles within discs.
  void bound(const Level<T>& level, int64_t begin, int64_t end, T* lower, T* upper) const {
    const T *cx = level.discs + begin, *cy = cx + level.count, *cz = cy + level.count, *nx = cz + level.count,
            *ny = nx + level.count, *nz = ny + level.count, *radius = nz + level.count, *half = radius + level.count;
    for (int64_t k = 0; k < end - begin; ++k) {
      const T vx = x - cx[k], vy = y - cy[k], vz = z - cz[k];
      const T height = vx * nx[k] + vy * ny[k] + vz * nz[k];
      const T tx = vx - height * nx[k], ty = vy - height * ny[k], tz = vz - height * nz[k];
      const T beside = positive(std::sqrt(tx * tx + ty * ty + tz * tz) - radius[k]);
      const T above = positive(std::fabs(height) - half[k]);
      lower[k] = beside * beside + above * above;
      upper[k] = vx * vx + vy * vy + vz * vz;
    }
  }

  // Compare with triangles begin, ..., end - 1.
  void measure(int64_t begin, int64_t end) {
    T square[MOST];
    const int64_t n = in.triangles;
    const T* f = in.frames + begin;
    for (int64_t k = 0; k < end - begin; ++k, ++f) {
      const T rx = x - f[0], ry = y - f[n], rz = z - f[2 * n];
      const T px = rx * f[3 * n] + ry * f[4 * n] + rz * f[5 * n];
      const T py = rx * f[6 * n] + ry * f[7 * n] + rz * f[8 * n];
      const T pz = rx * f[9 * n] + ry * f[10 * n] + rz * f[11 * n];
      const T bx = f[12 * n], cx = f[13 * n], cy = f[14 * n], ux = f[15 * n], uy = f[16 * n], ul = f[17 * n];
      const T wx = f[18 * n], wy = f[19 * n], wl = f[20 * n];
      const T first = to_edge(px, -py, bx);
      const T second = to_edge((px - bx) * ux + py * uy, (px - bx) * uy - py * ux, ul);
      const T third = to_edge((px - cx) * wx + (py - cy) * wy, (px - cx) * wy - (py - cy) * wx, wl);
      const bool inside = (py >= T(0)) & ((px - bx) * uy <= py * ux) & ((px - cx) * wy <= (py - cy) * wx);
      square[k] = (inside ? T(0) : smaller(smaller(first, second), third)) + pz * pz;
    }
    bool changed = false;
    for (int64_t k = 0; k < end - begin; ++k) {
      const int64_t number = in.order[begin + k];
      if (square[k] < least) least = square[k], nearest = number, changed = true;
      if (square[k] == least && number < nearest) nearest = number;
    }
    if (changed) shorten(least);
  }
};

// Write the numbers of the triangles nearest to points first, ..., last - 1 of (P, 3); of the smallest number where
// several are.
template <typename T>
void nearest_triangles(int64_t depth, const Level<T>* levels, int64_t triangles, const T* frames, const int64_t* order,
                       const T* points, int64_t* found, int64_t first, int64_t last) {
  T extent = 0;
  for (int64_t k = 0; k < levels[0].count; ++k) {
    const T* disc = levels[0].discs + k;
    const int64_t n = levels[0].count;
    const T size = std::fabs(disc[0]) + std::fabs(disc[n]) + std::fabs(disc[2 * n]) + disc[6 * n] + disc[7 * n];
    extent = size > extent ? size : extent;
  }
  const Hierarchy<T> in = {levels, depth, triangles, frames, order};
  Search<T> search(in, extent);
  for (int64_t k = first; k < last; ++k) {
    search.find(points + 3 * k);
    found[k] = search.nearest;
  }
}

}  // namespace

#define DEFINE(T, NAME)                                                                                             \
  void nearest_triangles_##NAME(int64_t depth, const void* levels, int64_t triangles, const T* frames,              \
                                const int64_t* order, const T* points, int64_t* found, int64_t first, int64_t last) { \
    nearest_triangles(depth, static_cast<const Level<T>*>(levels), triangles, frames, order, points, found, first,  \
                      last);                                                                                        \
  }

extern "C" {
DEFINE(double, float64)
DEFINE(float, float32)
}
