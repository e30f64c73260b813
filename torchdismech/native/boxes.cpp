// Pairs of axis-aligned boxes that overlap, robot by robot: columns and a sweep; see `contact/pairs/broad_phase.py`.
//
// Boxes are swept along the axis on which the robot is longest, here called z. Along the longer of the other two, x,
// space is divided into columns of twice the mean width of a box. A box is entered in all columns that it overlaps, two
// or three on average, and a pair counts in the first column that both boxes are in. Columns only save comparisons:
// whether boxes overlap is decided by comparing the given numbers.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace {

// Width of a column in mean widths of a box: in narrower ones a box has more entries, in wider ones more are compared.
constexpr double WIDTH = 2;

// The boxes of a set: corners (robots, count, 3).
struct Set {
  const double *low, *high;
  int64_t count;
};

// The extent of a robot's boxes on each axis, the sums of their widths, and whether they are valid.
struct Extent {
  double low[3] = {INFINITY, INFINITY, INFINITY}, high[3] = {-INFINITY, -INFINITY, -INFINITY};
  double widths[3] = {0, 0, 0};
  double least_high[3] = {INFINITY, INFINITY, INFINITY}, most_low[3] = {-INFINITY, -INFINITY, -INFINITY};
  double nothing = 0;  // NaN where a number is not finite
  bool inside_out = false;

  void add(const Set& set, int64_t robot) {
    const double *lower = set.low + 3 * set.count * robot, *upper = set.high + 3 * set.count * robot;
    for (int64_t k = 0; k < set.count; ++k, lower += 3, upper += 3)
      for (int a = 0; a < 3; ++a) {
        const double l = lower[a], h = upper[a];
        low[a] = l < low[a] ? l : low[a], most_low[a] = l > most_low[a] ? l : most_low[a];
        high[a] = h > high[a] ? h : high[a], least_high[a] = h < least_high[a] ? h : least_high[a];
        widths[a] += h - l;
        nothing += l * 0 + h * 0;
        inside_out |= l > h;
      }
  }

  double spread(int a) const { return high[a] - low[a]; }

  // Whether all numbers are finite, and no further apart than numbers can tell.
  bool finite() const {
    for (int a = 0; a < 3; ++a)
      if (!std::isfinite(spread(a)) || !std::isfinite(most_low[a] - least_high[a])) return false;
    return nothing == 0;
  }
};

// Columns along x. A coordinate x is in column floor((x - start) * scale), or in the last one; it increases with x.
struct Columns {
  int x, y, z, count = 1;
  double start, scale = 0;

  Columns(const Extent& of, int64_t boxes) {
    z = of.spread(1) > of.spread(0) ? 1 : 0;
    z = of.spread(2) > of.spread(z) ? 2 : z;
    x = (z + 1) % 3, y = (z + 2) % 3;
    if (of.spread(y) > of.spread(x)) std::swap(x, y);
    start = of.low[x];
    const double mean = of.widths[x] / boxes, wanted = mean > 0 ? of.spread(x) / (WIDTH * mean) : INFINITY;
    const double columns = std::max(1.0, std::min(wanted, double(boxes)));
    const double by = std::floor(columns) / of.spread(x);
    if (columns >= 2 && std::isfinite(by)) count = int(columns), scale = by;
  }

  int of(double number) const { return std::min(count - 1, int((number - start) * scale)); }
};

// A box in one of the columns that it overlaps; `first` is the first of these.
struct Entry {
  double z_low, z_high, x_low, x_high, y_low, y_high;
  int32_t first, box;
};

// The boxes of a set by columns, and in each sorted by their lower z; those of column c begin at begin[c].
struct Table {
  std::vector<Entry> entries;
  std::vector<int64_t> begin;

  void fill(const Set& set, int64_t robot, const Columns& columns) {
    const double *low = set.low + 3 * set.count * robot, *high = set.high + 3 * set.count * robot;
    order.resize(set.count);
    begin.assign(columns.count + 1, 0);
    for (int64_t k = 0; k < set.count; ++k) {
      order[k] = {low[3 * k + columns.z], int32_t(k)};
      const int last = columns.of(high[3 * k + columns.x]);
      for (int c = columns.of(low[3 * k + columns.x]); c <= last; ++c) ++begin[c + 1];
    }
    std::sort(order.begin(), order.end());
    for (int c = 0; c < columns.count; ++c) begin[c + 1] += begin[c];
    next.assign(begin.begin(), begin.end());
    entries.resize(begin.back());
    for (const auto& [z, k] : order) {
      const double *l = low + 3 * k, *h = high + 3 * k;
      const int x = columns.x, y = columns.y, first = columns.of(l[x]), last = columns.of(h[x]);
      const Entry entry = {z, h[columns.z], l[x], h[x], l[y], h[y], first, k};
      for (int c = first; c <= last; ++c) entries[next[c]++] = entry;
    }
  }

 private:
  std::vector<std::pair<double, int32_t>> order;
  std::vector<int64_t> next;
};

// Indices of two boxes that overlap; the first is of the first set.
struct Pair {
  int32_t first, second;
};

class Search {
 public:
  std::vector<Pair> pairs;  // of one robot, in the order of first, then second

  void within(const Set& set, int64_t robot, const Columns& columns) {
    pairs.clear();
    mine.fill(set, robot, columns);
    for (int c = 0; c < columns.count; ++c) {
      const Entry *end = mine.entries.data() + mine.begin[c + 1];
      for (const Entry* a = mine.entries.data() + mine.begin[c]; a < end; ++a)
        for (const Entry* b = a + 1; b < end && b->z_low <= a->z_high; ++b)
          if (meet(*a, *b, c)) pairs.push_back({std::min(a->box, b->box), std::max(a->box, b->box)});
    }
    sort(set.count);
  }

  void between(const Set& set, const Set& others, int64_t robot, const Columns& columns) {
    pairs.clear();
    mine.fill(set, robot, columns);
    theirs.fill(others, robot, columns);
    for (int c = 0; c < columns.count; ++c) {
      // pairs that begin at the same z are found by the first sweep alone
      sweep(mine, theirs, c, [](double a, double b) { return b < a; },
            [&](const Entry& a, const Entry& b) { pairs.push_back({a.box, b.box}); });
      sweep(theirs, mine, c, [](double a, double b) { return b <= a; },
            [&](const Entry& a, const Entry& b) { pairs.push_back({b.box, a.box}); });
    }
    sort(set.count);
  }

 private:
  Table mine, theirs;
  std::vector<int64_t> begin;
  std::vector<Pair> sorted;

  // Whether two boxes, one of which begins within the z range of the other, overlap, and this is the column that
  // counts.
  static bool meet(const Entry& a, const Entry& b, int column) {
    return (a.y_low <= b.y_high) & (b.y_low <= a.y_high) & (a.x_low <= b.x_high) & (b.x_low <= a.x_high) &
           (std::max(a.first, b.first) == column);
  }

  // Call take(a, b) for the pairs of overlapping boxes of a column of which b begins within the z range of a. `before`
  // tells from the lower z of both whether b begins before a.
  template <typename Before, typename Take>
  static void sweep(const Table& firsts, const Table& seconds, int column, const Before& before, const Take& take) {
    const Entry *from = seconds.entries.data() + seconds.begin[column];
    const Entry *end = seconds.entries.data() + seconds.begin[column + 1];
    for (int64_t k = firsts.begin[column]; k < firsts.begin[column + 1]; ++k) {
      const Entry& a = firsts.entries[k];
      while (from < end && before(a.z_low, from->z_low)) ++from;
      for (const Entry* b = from; b < end && b->z_low <= a.z_high; ++b)
        if (meet(a, *b, column)) take(a, *b);
    }
  }

  // Sort the pairs: by the first box into its place, the few seconds of each by comparison.
  void sort(int64_t boxes) {
    begin.assign(boxes + 1, 0);
    sorted.resize(pairs.size());
    for (const Pair& pair : pairs) ++begin[pair.first + 1];
    for (int64_t k = 0; k < boxes; ++k) begin[k + 1] += begin[k];
    for (const Pair& pair : pairs) sorted[begin[pair.first]++] = pair;  // begin[k] becomes the end of the pairs of k
    int64_t start = 0;
    for (int64_t k = 0; k < boxes; start = begin[k++])
      std::sort(sorted.begin() + start, sorted.begin() + begin[k],
                [](const Pair& a, const Pair& b) { return a.second < b.second; });
    pairs.swap(sorted);
  }
};

}  // namespace

extern "C" {

// Write robot, first and second, (3, room), of the pairs of boxes that overlap, sorted; but for those whose keys
// first * others + second are among the increasing `excluded`. Without `other_low` pairs are of two boxes of the first
// set, and `others` are as many as these. Return how many pairs there are, which may be more than there is room for;
// -1 for a box that is inside out. A robot with a number that is not finite has no pairs.
int64_t overlapping_boxes(int64_t robots, int64_t own, const double* low, const double* high, int64_t others,
                          const double* other_low, const double* other_high, const int64_t* excluded,
                          int64_t count_excluded, int64_t room, int64_t* found) {
  const Set set = {low, high, own}, second = {other_low, other_high, others};
  const bool is_one = other_low == nullptr;
  Search search;
  int64_t count = 0;
  for (int64_t robot = 0; robot < robots; ++robot) {
    Extent extent;
    extent.add(set, robot);
    if (!is_one) extent.add(second, robot);
    if (!extent.finite()) continue;
    if (extent.inside_out) return -1;
    const Columns columns(extent, is_one ? own : own + others);
    if (is_one)
      search.within(set, robot, columns);
    else
      search.between(set, second, robot, columns);
    const int64_t *next = excluded, *end = excluded + count_excluded;
    for (const Pair& pair : search.pairs) {
      const int64_t key = pair.first * others + pair.second;
      while (next < end && *next < key) ++next;
      if (next < end && *next == key) continue;
      if (count < room) found[count] = robot, found[room + count] = pair.first, found[2 * room + count] = pair.second;
      ++count;
    }
  }
  return count;
}
}
