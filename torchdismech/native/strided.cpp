// Operations on tensors of any strides, a table of them one after the other: for tensors so small that a call of torch
// takes longer than what it does. Each rounds as torch's operation does, so the numbers are the same to the last bit.

#include <cmath>
#include <cstdint>

namespace {

constexpr int DIMS = 4;

// The order is that of `CODES` and `TYPES` in strided.py.
enum Code {
  COPY, GATHER, SCATTER, WHERE,
  NEGATIVE, ABSOLUTE, RECIPROCAL, SQUARE, NOT,
  ADD, SUBTRACT, MULTIPLY, DIVIDE, MAXIMUM, MINIMUM, AND, OR,
  EQUAL, DIFFERENT, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL
};
enum Type { FLOAT64, FLOAT32, INT64, BOOL };

// A tensor: where it begins, and the bytes from one number to the next along each dimension.
struct Operand {
  char* data;
  int64_t stride[DIMS];
};

// An operation. Operand 0 is written. `type` is that of the numbers that are read, `made` that of those that are written
// by COPY. GATHER reads operand 1 at the places 0 to `places` that operand 2 says, `along` bytes apart; SCATTER writes
// operand 0 likewise.
struct Row {
  int64_t code, type, made, along, places, size[DIMS];
  Operand operand[DIMS];
};

// Call line(pointers, count, strides) for each line along the last dimension.
template <int N, typename Line>
inline void each_line(const Row& row, Line line) {
  int64_t stride[N];
  for (int k = 0; k < N; ++k) stride[k] = row.operand[k].stride[DIMS - 1];
  for (int64_t a = 0; a < row.size[0]; ++a)
    for (int64_t b = 0; b < row.size[1]; ++b)
      for (int64_t c = 0; c < row.size[2]; ++c) {
        char* at[N];
        for (int k = 0; k < N; ++k) {
          const Operand& o = row.operand[k];
          at[k] = o.data + a * o.stride[0] + b * o.stride[1] + c * o.stride[2];
        }
        line(at, row.size[3], stride);
      }
}

template <typename T>
inline T& at(char* first, int64_t k, int64_t stride) {
  return *reinterpret_cast<T*>(first + k * stride);
}

template <typename To, typename From, typename F>
void unary(const Row& row, F f) {
  each_line<2>(row, [&](char* const* p, int64_t count, const int64_t* s) {
    if (s[0] == sizeof(To) && s[1] == sizeof(From)) {
      To* to = reinterpret_cast<To*>(p[0]);
      const From* from = reinterpret_cast<const From*>(p[1]);
      for (int64_t k = 0; k < count; ++k) to[k] = f(from[k]);
    } else {
      for (int64_t k = 0; k < count; ++k) at<To>(p[0], k, s[0]) = f(at<From>(p[1], k, s[1]));
    }
  });
}

template <typename To, typename From, typename F>
void binary(const Row& row, F f) {
  each_line<3>(row, [&](char* const* p, int64_t count, const int64_t* s) {
    if (s[0] == sizeof(To) && s[1] == sizeof(From) && s[2] == sizeof(From)) {
      To* to = reinterpret_cast<To*>(p[0]);
      const From *left = reinterpret_cast<const From*>(p[1]), *right = reinterpret_cast<const From*>(p[2]);
      for (int64_t k = 0; k < count; ++k) to[k] = f(left[k], right[k]);
    } else {
      for (int64_t k = 0; k < count; ++k)
        at<To>(p[0], k, s[0]) = f(at<From>(p[1], k, s[1]), at<From>(p[2], k, s[2]));
    }
  });
}

template <typename From>
void copied(const Row& row) {
  switch (row.made) {
    case FLOAT64: return unary<double, From>(row, [](From x) { return static_cast<double>(x); });
    case FLOAT32: return unary<float, From>(row, [](From x) { return static_cast<float>(x); });
    case INT64: return unary<int64_t, From>(row, [](From x) { return static_cast<int64_t>(x); });
    case BOOL: return unary<bool, From>(row, [](From x) { return x != From(0); });
  }
}

// What moves numbers without looking at them: T is a type of their size. Returns whether all places are there.
template <typename T>
bool moved(const Row& row) {
  bool there = true;
  const auto place = [&](int64_t k) -> int64_t {
    if (k < 0) k += row.places;
    if (k >= 0 && k < row.places) return k * row.along;
    there = false;
    return 0;
  };
  switch (row.code) {
    case GATHER:
      each_line<3>(row, [&](char* const* p, int64_t count, const int64_t* s) {
        for (int64_t k = 0; k < count; ++k)
          at<T>(p[0], k, s[0]) = at<T>(p[1] + place(at<int64_t>(p[2], k, s[2])), k, s[1]);
      });
      break;
    case SCATTER:
      each_line<3>(row, [&](char* const* p, int64_t count, const int64_t* s) {
        for (int64_t k = 0; k < count; ++k)
          at<T>(p[0] + place(at<int64_t>(p[2], k, s[2])), k, s[0]) = at<T>(p[1], k, s[1]);
      });
      break;
    case WHERE:
      each_line<4>(row, [&](char* const* p, int64_t count, const int64_t* s) {
        for (int64_t k = 0; k < count; ++k)
          at<T>(p[0], k, s[0]) = at<bool>(p[1], k, s[1]) ? at<T>(p[2], k, s[2]) : at<T>(p[3], k, s[3]);
      });
  }
  return there;
}

template <typename T>
void compared(const Row& row) {
  switch (row.code) {
    case EQUAL: return binary<bool, T>(row, [](T a, T b) { return a == b; });
    case DIFFERENT: return binary<bool, T>(row, [](T a, T b) { return a != b; });
    case LESS: return binary<bool, T>(row, [](T a, T b) { return a < b; });
    case LESS_EQUAL: return binary<bool, T>(row, [](T a, T b) { return a <= b; });
    case GREATER: return binary<bool, T>(row, [](T a, T b) { return a > b; });
    case GREATER_EQUAL: return binary<bool, T>(row, [](T a, T b) { return a >= b; });
  }
}

// NaN wins, as in torch.
template <typename T>
inline T larger(T a, T b) {
  return a != a ? a : (b != b ? b : (a < b ? b : a));
}
template <typename T>
inline T smaller(T a, T b) {
  return a != a ? a : (b != b ? b : (b < a ? b : a));
}

template <typename T>
void calculated(const Row& row) {
  switch (row.code) {
    case NEGATIVE: return unary<T, T>(row, [](T x) { return -x; });
    case SQUARE: return unary<T, T>(row, [](T x) { return x * x; });
    case ADD: return binary<T, T>(row, [](T a, T b) { return a + b; });
    case SUBTRACT: return binary<T, T>(row, [](T a, T b) { return a - b; });
    case MULTIPLY: return binary<T, T>(row, [](T a, T b) { return a * b; });
    case MAXIMUM: return binary<T, T>(row, larger<T>);
    case MINIMUM: return binary<T, T>(row, smaller<T>);
  }
  compared<T>(row);
}

template <typename T>
void of_reals(const Row& row) {
  switch (row.code) {
    case ABSOLUTE: return unary<T, T>(row, [](T x) { return std::abs(x); });
    case RECIPROCAL: return unary<T, T>(row, [](T x) { return T(1) / x; });
    case DIVIDE: return binary<T, T>(row, [](T a, T b) { return a / b; });
  }
  calculated<T>(row);
}

void of_truths(const Row& row) {
  switch (row.code) {
    case NOT: return unary<bool, bool>(row, [](bool x) { return !x; });
    case AND: return binary<bool, bool>(row, [](bool a, bool b) { return a && b; });
    case OR: return binary<bool, bool>(row, [](bool a, bool b) { return a || b; });
  }
  compared<bool>(row);
}

bool carried_out(const Row& row) {
  if (row.code == GATHER || row.code == SCATTER || row.code == WHERE) {
    switch (row.type) {
      case FLOAT64:
      case INT64: return moved<int64_t>(row);
      case FLOAT32: return moved<int32_t>(row);
      default: return moved<bool>(row);
    }
  }
  const bool copies = row.code == COPY;
  switch (row.type) {
    case FLOAT64: copies ? copied<double>(row) : of_reals<double>(row); break;
    case FLOAT32: copies ? copied<float>(row) : of_reals<float>(row); break;
    case INT64: copies ? copied<int64_t>(row) : calculated<int64_t>(row); break;
    case BOOL: copies ? copied<bool>(row) : of_truths(row); break;
  }
  return true;
}

}  // namespace

// Carry out the rows in turn. Returns how many of them were: fewer than `count` where one has a place that is not there.
extern "C" int64_t strided_operations(int64_t count, const Row* rows) {
  int64_t done = 0;
  while (done < count && carried_out(rows[done])) ++done;
  return done;
}
