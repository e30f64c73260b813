// The interpreter of a tape's instructions: operations on tensors of any strides, one after the other, for tensors so
// small that a call of torch takes longer than its arithmetic. Each rounds as torch's operation does, so that the
// results have the same bits.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#include "lanes.h"

namespace {

constexpr int DIMS = 4, OPERANDS = 4;

// In the order of `CODES` and `TYPES` in instructions.py.
enum Code {
  COPY, GATHER, SCATTER, ADD_AT, MAX_AT, MIN_AT, WHERE,
  NEGATIVE, ABSOLUTE, RECIPROCAL, SQUARE, NOT,
  ADD, SUBTRACT, MULTIPLY, DIVIDE, MAXIMUM, MINIMUM, AND, OR,
  EQUAL, DIFFERENT, LESS, LESS_EQUAL
};
enum Type { FLOAT64, FLOAT32, INT64, BOOL };

// A tensor: where it begins, and the bytes from one number to the next along each dimension.
struct Operand {
  char* data;
  int64_t stride[DIMS];
};

// An operation and its tensors, as instructions.py encodes them. Operand 0 is written, the others are read. `type` is
// the type of the numbers that are read, `made` the type of those that COPY writes. GATHER reads operand 1 at the
// indices in operand 2, which are below `indexed_size`; consecutive indices are `indexed_stride` bytes apart. SCATTER
// writes operand 0 at such indices; ADD_AT adds to it there, MAX_AT and MIN_AT keep the larger or smaller number there,
// one number after the other.
struct Instruction {
  int64_t code, type, made, indexed_stride, indexed_size, size[DIMS];
  Operand operand[OPERANDS];
};

// Number k of a line whose numbers are `stride` bytes apart.
template <typename T>
inline T& at(char* first, int64_t k, int64_t stride) {
  return *reinterpret_cast<T*>(first + k * stride);
}

// A buffer for some lines of an operand that is transposed in memory: the numbers of a line are far apart, and next to
// each is the number of the next line. Numbers that are neighbours in memory are read together and copied here, line
// by line.
template <typename T>
struct Transposed {
  static constexpr int64_t LINES = 64 / sizeof(T), MOST = 128;
  static constexpr int64_t LONG = 64;  // least length of a line: with shorter ones the source stays in the first cache
  T numbers[LINES][MOST];

  static bool is(const Operand& o, int64_t lines, int64_t count) {
    const int64_t step = o.stride[DIMS - 1], dense = sizeof(T);
    return sizeof(T) >= 4 && lines >= LINES && count >= LONG && o.stride[DIMS - 2] == dense && step > dense;
  }
  void read(char* first, int64_t step, int64_t count) {
    int64_t k = 0;
    for (; k + 4 <= count; k += 4, first += 4 * step)
      for (int64_t j = 0; j < LINES; j += 4) turn(first + j * sizeof(T), step, j, k);
    for (; k < count; ++k, first += step)
      for (int64_t j = 0; j < LINES; ++j) numbers[j][k] = at<T>(first, j, sizeof(T));
  }

 private:
  typedef typename std::conditional<sizeof(T) == 8, int64_t, int32_t>::type Bits;
  typedef Bits Four __attribute__((vector_size(4 * sizeof(Bits))));

  // Transpose four numbers of each of four lines. Each vector is put together from two others, which compilers
  // recognise as one instruction.
  void turn(const char* first, int64_t step, int64_t line, int64_t k) {
    Four a, b, c, d;
    std::memcpy(&a, first, sizeof a), std::memcpy(&b, first + step, sizeof b);
    std::memcpy(&c, first + 2 * step, sizeof c), std::memcpy(&d, first + 3 * step, sizeof d);
    const Four even = {a[0], b[0], a[2], b[2]}, odd = {a[1], b[1], a[3], b[3]};
    const Four more = {c[0], d[0], c[2], d[2]}, others = {c[1], d[1], c[3], d[3]};
    put(line, k, Four{even[0], even[1], more[0], more[1]});
    put(line + 1, k, Four{odd[0], odd[1], others[0], others[1]});
    put(line + 2, k, Four{even[2], even[3], more[2], more[3]});
    put(line + 3, k, Four{odd[2], odd[3], others[2], others[3]});
  }
  void put(int64_t line, int64_t k, Four four) { std::memcpy(numbers[line] + k, &four, sizeof four); }
};

// `lines` neighbouring lines of `count` numbers. For each operand, `across` are the bytes from a line to the next, and
// `along` those from a number of a line to the next.
struct Lines {
  int64_t lines, count;
  const int64_t *across, *along;
};

// Call block(pointers, lines) for parts of the lines along the last dimension that begin at `first`; operand `of` is
// transposed in memory, and read through a buffer. Returns the number of lines done: all but the last few.
template <int N, typename T, typename Block>
inline int64_t blocks_across(const Instruction& op, char* const* first, const int64_t* stride, int of, Block block) {
  Transposed<T> turned;
  constexpr int64_t LINES = Transposed<T>::LINES, MOST = Transposed<T>::MOST;
  const int64_t count = op.size[DIMS - 1], lines = op.size[DIMS - 2];
  int64_t along[N], across[N], own[N];
  for (int k = 0; k < N; ++k) {
    across[k] = op.operand[k].stride[DIMS - 2];
    along[k] = k == of ? sizeof(T) : stride[k], own[k] = k == of ? MOST * sizeof(T) : across[k];
  }
  int64_t c = 0;
  for (; c + LINES <= lines; c += LINES)
    for (int64_t start = 0; start < count; start += MOST) {
      const int64_t some = count - start < MOST ? count - start : MOST;
      char* at[N];
      for (int k = 0; k < N; ++k) at[k] = first[k] + c * across[k] + start * stride[k];
      turned.read(at[of], stride[of], some);
      at[of] = reinterpret_cast<char*>(turned.numbers[0]);
      block(at, Lines{LINES, some, own, along});
    }
  return c;
}

// Call block(pointers, lines) for all lines along the last dimension, or parts of them. T is the type of the numbers
// that are read, or another type of its size.
template <int N, typename T, typename Block>
void each_block(const Instruction& op, Block block) {
  int64_t along[N], across[N];
  for (int k = 0; k < N; ++k) {
    along[k] = op.operand[k].stride[DIMS - 1];
    across[k] = op.operand[k].stride[DIMS - 2];
  }
  int of = 0;  // operand that is transposed in memory; 0: none
  for (int k = N == 4 ? 2 : 1; k < N; ++k)  // of four operands the first that is read is a mask
    if (Transposed<T>::is(op.operand[k], op.size[DIMS - 2], op.size[DIMS - 1])) of = k;
  for (int64_t a = 0; a < op.size[0]; ++a)
    for (int64_t b = 0; b < op.size[1]; ++b) {
      char* first[N];
      for (int k = 0; k < N; ++k) {
        const Operand& o = op.operand[k];
        first[k] = o.data + a * o.stride[0] + b * o.stride[1];
      }
      int64_t done = 0;
      if constexpr (sizeof(T) >= 4) done = of ? blocks_across<N, T>(op, first, along, of, block) : 0;
      for (int k = 0; k < N; ++k) first[k] += done * across[k];
      if (done < op.size[DIMS - 2]) block(first, Lines{op.size[DIMS - 2] - done, op.size[DIMS - 1], across, along});
    }
}

// Call line(pointers, count, strides) for each line along the last dimension, or for parts of it.
template <int N, typename T, typename Line>
void each_line(const Instruction& op, Line line) {
  each_block<N, T>(op, [&](char* const* first, Lines of) {
    for (int64_t c = 0; c < of.lines; ++c) {
      char* at[N];
      for (int k = 0; k < N; ++k) at[k] = first[k] + c * of.across[k];
      line(at, of.count, of.along);
    }
  });
}

// The memory that is written is either the same as that read, or does not overlap it: the compiler need not check.
#if defined(__clang__)
#define APART _Pragma("clang loop vectorize(assume_safety)")
#else
#define APART _Pragma("GCC ivdep")
#endif

// Arithmetic on lines. It is called through a pointer, so that the code that finds the lines is compiled once for all
// arithmetic: if it is inlined everywhere, compiling takes half a minute.
typedef void (*OfLines)(char* const*, Lines);

template <int Bytes> struct OfSize;
template <> struct OfSize<8> { typedef int64_t Bits; };
template <> struct OfSize<4> { typedef int32_t Bits; };
template <> struct OfSize<1> { typedef uint8_t Bits; };

template <int N, typename From>
void each_block_by(const Instruction& op, OfLines of_lines) {
  each_block<N, typename OfSize<sizeof(From)>::Bits>(op, of_lines);
}

template <typename To, typename From, typename F>
void unary_lines(char* const* p, Lines of) {
  const F f{};
  const int64_t step = of.along[0], other = of.along[1], count = of.count;
  for (int64_t c = 0; c < of.lines; ++c) {
    char *first = p[0] + c * of.across[0], *read = p[1] + c * of.across[1];
    To* to = reinterpret_cast<To*>(first);
    const From* from = reinterpret_cast<const From*>(read);
    if (step != sizeof(To)) {
      for (int64_t k = 0; k < count; ++k) at<To>(first, k, step) = f(at<From>(read, k, other));
    } else if (other == sizeof(From)) {
      APART for (int64_t k = 0; k < count; ++k) to[k] = f(from[k]);
    } else if (other == 0) {
      const To value = f(*from);
      for (int64_t k = 0; k < count; ++k) to[k] = value;
    } else {
      APART for (int64_t k = 0; k < count; ++k) to[k] = f(at<From>(read, k, other));
    }
  }
}

template <typename To, typename From, typename F>
void binary_lines(char* const* p, Lines of) {
  const F f{};
  const int64_t step = of.along[0], one = of.along[1], other = of.along[2], count = of.count, dense = sizeof(From);
  const bool few = !std::is_same<To, From>::value;  // comparisons, which are rare and short, have no cases of scalars
  for (int64_t c = 0; c < of.lines; ++c) {
    char *first = p[0] + c * of.across[0], *a = p[1] + c * of.across[1], *b = p[2] + c * of.across[2];
    To* to = reinterpret_cast<To*>(first);
    const From *left = reinterpret_cast<const From*>(a), *right = reinterpret_cast<const From*>(b);
    if (step == sizeof(To) && one == dense && other == dense) {
      APART for (int64_t k = 0; k < count; ++k) to[k] = f(left[k], right[k]);
    } else if (!few && step == dense && one == dense && other == 0) {
      const From value = *right;
      APART for (int64_t k = 0; k < count; ++k) to[k] = f(left[k], value);
    } else if (!few && step == dense && one == 0 && other == dense) {
      const From value = *left;
      APART for (int64_t k = 0; k < count; ++k) to[k] = f(value, right[k]);
    } else {
      for (int64_t k = 0; k < count; ++k) at<To>(first, k, step) = f(at<From>(a, k, one), at<From>(b, k, other));
    }
  }
}

template <typename To, typename From, typename F>
void unary(const Instruction& op) {
  each_block_by<2, From>(op, unary_lines<To, From, F>);
}

template <typename To, typename From, typename F>
void binary(const Instruction& op) {
  each_block_by<3, From>(op, binary_lines<To, From, F>);
}

// Reduce the numbers of each line to one: in several lanes, which are combined at the end of the line.
template <typename T, typename F>
void reduced_lines(char* const* p, Lines of) {
  const F f{};
  for (int64_t c = 0; c < of.lines; ++c) {
    char* read = p[2] + c * of.across[2];
    T& made = at<T>(p[0], c, of.across[0]);
    T number = made;
    int64_t k = 0;
    if constexpr (std::is_floating_point<T>::value) {  // compilers leave choices between numbers that are not vectors
      if (of.along[2] == sizeof(T)) {
        constexpr int64_t WIDTH = VECTOR_BYTES / sizeof(T), VECTORS = 4;
        Vec<T> lane[VECTORS];
        for (Vec<T>& one : lane) one = Vec<T>{} + number;
        for (; k + VECTORS * WIDTH <= of.count; k += VECTORS * WIDTH)
          for (int64_t j = 0; j < VECTORS; ++j)
            lane[j] = f(lane[j], read_once<Vec<T>>(read + (k + j * WIDTH) * sizeof(T)));
        const Vec<T> found = f(f(lane[0], lane[1]), f(lane[2], lane[3]));
        for (int64_t j = 0; j < WIDTH; ++j) number = f(number, T(found[j]));
      }
    }
    for (; k < of.count; ++k) number = f(number, at<T>(read, k, of.along[2]));
    made = number;
  }
}

// As `binary`, for operations whose result does not depend on the order of the numbers, nor on how often each is
// taken. If a line is reduced to one number, which is then operand 0 and 1, it is done in several lanes.
template <typename T, typename F>
void reduced(const Instruction& op) {
  const Operand &to = op.operand[0], &left = op.operand[1];
  if (op.size[DIMS - 1] < 2 || to.data != left.data || to.stride[DIMS - 1] || left.stride[DIMS - 1])
    return binary<T, T, F>(op);
  each_block_by<3, T>(op, reduced_lines<T, F>);
}

template <typename To, typename From>
struct Converted {
  To operator()(From x) const { return static_cast<To>(x); }  // to bool: whether it is not zero
};

template <typename From>
void copied(const Instruction& op) {
  switch (op.made) {
    case FLOAT64: return unary<double, From, Converted<double, From>>(op);
    case FLOAT32: return unary<float, From, Converted<float, From>>(op);
    case INT64: return unary<int64_t, From, Converted<int64_t, From>>(op);
    case BOOL: return unary<bool, From, Converted<bool, From>>(op);
  }
}

// Copy a line, unless source and target are the same.
template <typename T>
inline void copy_line(char* to, int64_t step, char* from, int64_t other, int64_t count) {
  if (to == from && step == other) return;
  if (step == sizeof(T) && other == sizeof(T)) {
    std::memcpy(to, from, count * sizeof(T));
  } else if (step == sizeof(T) && other == 0) {
    std::fill_n(reinterpret_cast<T*>(to), count, *reinterpret_cast<const T*>(from));
  } else {
    for (int64_t k = 0; k < count; ++k) at<T>(to, k, step) = at<T>(from, k, other);
  }
}

// a if `first` is 1, b if it is 0, by bit masks: with a condition the compiler would not vectorise the loop.
template <typename T>
inline T chosen(uint8_t first, T a, T b) {
  const T mask = T(0) - T(first);
  return (a & mask) | (b & ~mask);
}

// Write a line of WHERE: numbers of operand 2 where the mask, operand 1, is true, else of operand 3. T has their size.
template <typename T>
inline void choose_line(char* const* p, int64_t count, const int64_t* s) {
  const int64_t step = s[0], mask = s[1], one = s[2], other = s[3], dense = sizeof(T);
  if (!mask) {
    const int chosen = at<uint8_t>(p[1], 0, 0) ? 2 : 3;
    return copy_line<T>(p[0], step, p[chosen], s[chosen], count);
  }
  T* to = reinterpret_cast<T*>(p[0]);
  const uint8_t* choice = reinterpret_cast<const uint8_t*>(p[1]);  // 0 or 1
  const T *left = reinterpret_cast<const T*>(p[2]), *right = reinterpret_cast<const T*>(p[3]);
  const bool plain = step == dense && mask == 1;
  if (plain && one == dense && other == dense) {
    APART for (int64_t k = 0; k < count; ++k) to[k] = chosen(choice[k], left[k], right[k]);
  } else if (plain && one == 0 && other == dense) {
    const T value = *left;
    APART for (int64_t k = 0; k < count; ++k) to[k] = chosen(choice[k], value, right[k]);
  } else if (plain && one == dense && other == 0) {
    const T value = *right;
    APART for (int64_t k = 0; k < count; ++k) to[k] = chosen(choice[k], left[k], value);
  } else {
    for (int64_t k = 0; k < count; ++k)
      at<T>(p[0], k, step) = at<uint8_t>(p[1], k, mask) ? at<T>(p[2], k, one) : at<T>(p[3], k, other);
  }
}

// The indices in a line of operand 2, and their offsets in bytes: `along` from one index to the next. Valid indices
// are below `places`, the size of the dimension that they select from; negative ones count from its end.
struct Places {
  int64_t along, places;
  char* first = nullptr;
  int64_t stride = 0;
  int64_t least = 0, most = 0;

  void look(char* line, int64_t step, int64_t count) {
    first = line, stride = step, least = 0, most = 0;
    for (int64_t k = 0; k < count; ++k) {
      const int64_t place = at<int64_t>(line, k, step);
      least = place < least ? place : least;
      most = place > most ? place : most;
    }
  }
  bool there() const { return least >= -places && most < places; }
  bool plain() const { return least >= 0 && stride == sizeof(int64_t); }
  int64_t operator()(int64_t k) const {
    const int64_t place = at<int64_t>(first, k, stride);
    return (place < 0 ? place + places : place) * along;
  }
};

// A run of consecutive indices: the first of them, its position in the line, and their number.
struct Run {
  int64_t place, from, count;
};

// The runs of the indices in a line if there are few of them, else none. Indices of free unknowns usually form few
// runs, so that they are gathered or scattered by a few copies.
struct Runs {
  static constexpr int FEW = 8;
  int count = 0;
  Run run[FEW];

  void look(const Places& place, int64_t names) {
    count = 0;
    if (!place.plain()) return;
    const int64_t* index = reinterpret_cast<const int64_t*>(place.first);
    for (int64_t k = 0, end = -1; k < names; end = index[k++] + 1) {
      if (count && index[k] == end) {
        ++run[count - 1].count;
      } else if (count < FEW) {
        run[count++] = Run{index[k], k, 1};
      } else {
        count = 0;
        return;
      }
    }
  }
  const Run* begin() const { return run; }
  const Run* end() const { return run + count; }
};

// Read the indices of a line, unless they are those of the line before. With step 0 one index is for the whole line.
inline void look(Places& place, Runs& runs, char* line, int64_t step, int64_t count) {
  if (line == place.first) return;
  place.look(line, step, step ? count : 1);
  if (step) runs.look(place, count);
}

template <typename T>
inline void gather_line(char* to, int64_t step, char* from, int64_t other, const Places& place, const Runs& runs,
                        int64_t count) {
  if (runs.count && other == 0) {
    for (const Run& run : runs)
      copy_line<T>(to + run.from * step, step, from + run.place * place.along, place.along, run.count);
    return;
  }
  int64_t k = 0;
  if (place.plain() && step == sizeof(T) && other == 0) {
    T* numbers = reinterpret_cast<T*>(to);
    const int64_t *index = reinterpret_cast<const int64_t*>(place.first), along = place.along;
    for (; k + 4 <= count; k += 4) {  // four loads at a time: twice as fast as the processor's own instruction
      const T a = at<T>(from, index[k], along), b = at<T>(from, index[k + 1], along);
      const T c = at<T>(from, index[k + 2], along), d = at<T>(from, index[k + 3], along);
      numbers[k] = a, numbers[k + 1] = b, numbers[k + 2] = c, numbers[k + 3] = d;
    }
  }
  for (; k < count; ++k) at<T>(to, k, step) = at<T>(from + place(k), k, other);
}

template <typename T>
inline void scatter_line(char* to, int64_t step, char* from, int64_t other, const Places& place, const Runs& runs,
                         int64_t count) {
  if (runs.count && step == 0) {
    for (const Run& run : runs)
      copy_line<T>(to + run.place * place.along, place.along, from + run.from * other, other, run.count);
  } else if (place.plain() && step == 0 && other == sizeof(T)) {
    const T* numbers = reinterpret_cast<const T*>(from);
    const int64_t *index = reinterpret_cast<const int64_t*>(place.first), along = place.along;
    int64_t k = 0;
    for (; k + 4 <= count; k += 4) {  // as in `gather_line`
      const T a = numbers[k], b = numbers[k + 1], c = numbers[k + 2], d = numbers[k + 3];
      const int64_t i = index[k], j = index[k + 1], m = index[k + 2], n = index[k + 3];
      at<T>(to, i, along) = a, at<T>(to, j, along) = b, at<T>(to, m, along) = c, at<T>(to, n, along) = d;
    }
    for (; k < count; ++k) at<T>(to, index[k], along) = numbers[k];
  } else {
    for (int64_t k = 0; k < count; ++k) at<T>(to + place(k), k, step) = at<T>(from, k, other);
  }
}

// ADD_AT: add the numbers of operand 1 to operand 0 at the indices. Returns whether all indices are in range.
template <typename T>
bool added_at(const Instruction& op) {
  bool there = true;
  Places place{op.indexed_stride, op.indexed_size};
  Runs runs;
  each_line<3, T>(op, [&](char* const* p, int64_t count, const int64_t* s) {
    look(place, runs, p[2], s[2], count);
    if (!place.there()) {
      there = false;
    } else if (!s[2] && s[0] == sizeof(T)) {  // one index for the whole line
      T* to = reinterpret_cast<T*>(p[0] + place(0));
      const T* more = reinterpret_cast<const T*>(p[1]);
      if (s[1] == sizeof(T)) {
        APART for (int64_t k = 0; k < count; ++k) to[k] += more[k];
      } else if (!s[1]) {
        const T value = *more;
        for (int64_t k = 0; k < count; ++k) to[k] += value;
      } else {
        for (int64_t k = 0; k < count; ++k) to[k] += at<T>(p[1], k, s[1]);
      }
    } else if (runs.count && place.along == sizeof(T) && !s[0] && s[1] == sizeof(T)) {
      for (const Run& run : runs) {
        T* to = reinterpret_cast<T*>(p[0]) + run.place;
        const T* more = reinterpret_cast<const T*>(p[1]) + run.from;
        APART for (int64_t k = 0; k < run.count; ++k) to[k] += more[k];
      }
    } else if (place.plain() && !s[0] && s[1] == sizeof(T)) {
      const T* more = reinterpret_cast<const T*>(p[1]);
      const int64_t *index = reinterpret_cast<const int64_t*>(place.first), along = place.along;
      for (int64_t k = 0; k < count; ++k) *reinterpret_cast<T*>(p[0] + index[k] * along) += more[k];
    } else {
      for (int64_t k = 0; k < count; ++k) at<T>(p[0] + place(s[2] ? k : 0), k, s[0]) += at<T>(p[1], k, s[1]);
    }
  });
  return there;
}

// Operations that move numbers without computing: T is a type of their size. Returns whether all indices are in range.
template <typename T>
bool moved(const Instruction& op) {
  bool there = true;
  Places place{op.indexed_stride, op.indexed_size};
  Runs runs;
  switch (op.code) {
    case GATHER:
    case SCATTER:
      each_line<3, T>(op, [&](char* const* p, int64_t count, const int64_t* s) {
        look(place, runs, p[2], s[2], count);
        const bool gathers = op.code == GATHER;
        if (!place.there()) {
          there = false;
        } else if (!s[2]) {  // one index for the whole line
          copy_line<T>(gathers ? p[0] : p[0] + place(0), s[0], gathers ? p[1] + place(0) : p[1], s[1], count);
        } else if (gathers) {
          gather_line<T>(p[0], s[0], p[1], s[1], place, runs, count);
        } else {
          scatter_line<T>(p[0], s[0], p[1], s[1], place, runs, count);
        }
      });
      break;
    case WHERE:
      each_line<4, T>(op, choose_line<T>);
  }
  return there;
}

template <typename T>
struct Square {
  T operator()(T x) const { return x * x; }
};
template <typename T>
struct Absolute {
  T operator()(T x) const { return std::abs(x); }
};
template <typename T>
struct Reciprocal {
  T operator()(T x) const { return T(1) / x; }
};

// Of two numbers, or of each two of two vectors; NaN wins, as in torch.
struct Larger {
  template <typename V>
  V operator()(V a, V b) const { return ((a >= b) | (a != a)) ? a : b; }
};
struct Smaller {
  template <typename V>
  V operator()(V a, V b) const { return ((a <= b) | (a != a)) ? a : b; }
};

// MAX_AT and MIN_AT: write Chosen of the numbers of operands 0 and 1 to operand 0 at the indices. Returns whether all
// indices are in range.
template <typename T, typename Chosen>
bool chosen_at(const Instruction& op) {
  bool there = true;
  Places place{op.indexed_stride, op.indexed_size};
  Runs runs;
  each_line<3, T>(op, [&](char* const* p, int64_t count, const int64_t* s) {
    look(place, runs, p[2], s[2], count);
    if (!place.there()) {
      there = false;
      return;
    }
    for (int64_t k = 0; k < count; ++k) {
      T& number = at<T>(p[0] + place(s[2] ? k : 0), k, s[0]);
      number = Chosen()(number, at<T>(p[1], k, s[1]));
    }
  });
  return there;
}

template <typename T>
bool chosen_at(const Instruction& op) {
  return op.code == MAX_AT ? chosen_at<T, Larger>(op) : chosen_at<T, Smaller>(op);
}

template <typename T>
void compared(const Instruction& op) {
  switch (op.code) {
    case EQUAL: return binary<bool, T, std::equal_to<T>>(op);
    case DIFFERENT: return binary<bool, T, std::not_equal_to<T>>(op);
    case LESS: return binary<bool, T, std::less<T>>(op);
    case LESS_EQUAL: return binary<bool, T, std::less_equal<T>>(op);
  }
}

template <typename T>
void calculated(const Instruction& op) {
  switch (op.code) {
    case NEGATIVE: return unary<T, T, std::negate<T>>(op);
    case SQUARE: return unary<T, T, Square<T>>(op);
    case ADD: return binary<T, T, std::plus<T>>(op);
    case SUBTRACT: return binary<T, T, std::minus<T>>(op);
    case MULTIPLY: return binary<T, T, std::multiplies<T>>(op);
    case MAXIMUM: return reduced<T, Larger>(op);
    case MINIMUM: return reduced<T, Smaller>(op);
  }
  compared<T>(op);
}

template <typename T>
void of_reals(const Instruction& op) {
  switch (op.code) {
    case ABSOLUTE: return unary<T, T, Absolute<T>>(op);
    case RECIPROCAL: return unary<T, T, Reciprocal<T>>(op);
    case DIVIDE: return binary<T, T, std::divides<T>>(op);
  }
  calculated<T>(op);
}

void of_truths(const Instruction& op) {
  switch (op.code) {
    case NOT: return unary<bool, bool, std::logical_not<bool>>(op);
    case AND: return reduced<bool, std::logical_and<bool>>(op);
    case OR: return reduced<bool, std::logical_or<bool>>(op);
  }
  compared<bool>(op);
}

bool carried_out(const Instruction& op) {
  if (op.code == GATHER || op.code == SCATTER || op.code == WHERE) {
    switch (op.type) {
      case FLOAT64:
      case INT64: return moved<int64_t>(op);
      case FLOAT32: return moved<int32_t>(op);
      default: return moved<uint8_t>(op);
    }
  }
  if (op.code == ADD_AT) {
    switch (op.type) {
      case FLOAT64: return added_at<double>(op);
      case FLOAT32: return added_at<float>(op);
      case INT64: return added_at<int64_t>(op);
      default: return false;
    }
  }
  if (op.code == MAX_AT || op.code == MIN_AT) {
    switch (op.type) {
      case FLOAT64: return chosen_at<double>(op);
      case FLOAT32: return chosen_at<float>(op);
      case INT64: return chosen_at<int64_t>(op);
      default: return false;
    }
  }
  const bool copies = op.code == COPY;
  switch (op.type) {
    case FLOAT64: copies ? copied<double>(op) : of_reals<double>(op); break;
    case FLOAT32: copies ? copied<float>(op) : of_reals<float>(op); break;
    case INT64: copies ? copied<int64_t>(op) : calculated<int64_t>(op); break;
    case BOOL: copies ? copied<bool>(op) : of_truths(op); break;
  }
  return true;
}

}  // namespace

// Carry out the instructions in order. Returns how many were carried out: fewer than `count` if one of them has an
// index out of range.
extern "C" int64_t run_instructions(int64_t count, const Instruction* instructions) {
  int64_t done = 0;
  while (done < count && carried_out(instructions[done])) ++done;
  return done;
}
