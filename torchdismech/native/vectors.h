// Functions that generated code calls on vectors of numbers. The code has `typedef double number;` (or float) before it
// includes this file.
//
// A sine, cosine or angle differs from the C library's by a few units in the last place at most, and is the same in
// every lane, so that a robot's numbers do not depend on its place in the batch.

// Of the standard library only <cstdint> is included: reading <cmath> took a third of the time of compiling a small
// loop, and what is needed of it compilers have built in.

#include <cstdint>

#include "lanes.h"

namespace {

// The C library's functions of one number, in double and single precision.
namespace of_each {
#define FUNCTION(name)                                             \
  inline double name(double x) { return __builtin_##name(x); }     \
  inline float name(float x) { return __builtin_##name##f(x); }
FUNCTION(sin)
FUNCTION(cos)
FUNCTION(exp)
FUNCTION(expm1)
FUNCTION(log)
FUNCTION(log1p)
FUNCTION(tanh)
#undef FUNCTION
}  // namespace of_each

constexpr int LANES = VECTOR_BYTES / sizeof(number);
typedef Vec<number> V;
typedef decltype(V{} < V{}) M;  // mask: -1 where a condition holds, elsewhere 0

// A tensor that springs read: its first number and its strides by spring and robot, 0 where all share the numbers. With
// `rows`, spring s reads row rows[s * of_rows] instead of row s.
struct Input {
  const number* first;
  int64_t by_spring, by_robot;
  const int64_t* rows;
  int64_t of_rows;

  const number* of_spring(int64_t s) const { return first + (rows ? rows[s * of_rows] : s) * by_spring; }
};

// Where a vector of an input is in memory: at `first`, or, with `moves` = -1 (else 0), at `first` plus the robot of the
// first lane.
struct Source {
  const number* first;
  int64_t moves;
};

// The inputs of a formula. Each is read by the same few instructions, wherever it is in memory, so that formulas are
// compiled once and have no branches.
struct Sources {
  const Source* of;
  int64_t robot;

  V operator[](int64_t input) const {
    V v;
    __builtin_memcpy(&v, of[input].first + (robot & of[input].moves), sizeof v);
    return v;
  }
};

inline Source standing(const V& v) { return Source{reinterpret_cast<const number*>(&v), 0}; }

inline V all(number x) { return V{} + x; }

// For lanes that are robots of one spring: return where an input is read, in place or from `v`. An input that robots
// neither share nor have densely in memory has to be read into `v` for each vector of robots: `gathered` says so.
inline Source source_of(const Input& in, int64_t spring, V& v, bool& gathered) {
  const number* here = in.of_spring(spring);
  gathered = in.by_robot > 1 || in.by_robot < 0;
  if (in.by_robot == 1) return Source{here, -1};
  if (in.by_robot == 0) v = all(*here);
  return standing(v);
}

inline V read_at(const Input& in, int64_t spring, int64_t robot) {
  const number* p = in.of_spring(spring) + robot * in.by_robot;
  V v;
  for (int k = 0; k < LANES; ++k) v[k] = p[k * in.by_robot];
  return v;
}

// For lanes of several springs: the spring and the robot of each lane, from number `start` of all on. If there are
// fewer than LANES, the last is repeated.
struct Places {
  int64_t spring[LANES], robot[LANES];
  bool alone;  // there is one robot, and a spring in each lane

  Places(int64_t start, int64_t count, int64_t robots) : alone(robots == 1 && count == LANES) {
    int64_t s = start / robots, r = start % robots;
    for (int64_t k = 0; k < LANES; ++k) {
      spring[k] = s, robot[k] = r;
      if (k + 1 < count && ++r == robots) r = 0, ++s;
    }
  }
};

// The vector of an input for lanes of several springs.
inline V read_at(const Input& in, const Places& at) {
  V v;
  const number* p = in.first + at.spring[0] * in.by_spring;
  if (!at.alone) {
    for (int k = 0; k < LANES; ++k) v[k] = in.of_spring(at.spring[k])[at.robot[k] * in.by_robot];
  } else if (in.rows) {
    const int64_t* row = in.rows + at.spring[0] * in.of_rows;
    for (int k = 0; k < LANES; ++k) v[k] = in.first[row[k * in.of_rows] * in.by_spring];
  } else if (in.by_spring == 1) {
    __builtin_memcpy(&v, p, sizeof v);
  } else {
    for (int k = 0; k < LANES; ++k) v[k] = p[k * in.by_spring];
  }
  return v;
}

inline V root(V x) {
  for (int k = 0; k < LANES; ++k) x[k] = __builtin_sqrt(x[k]);
  return x;
}
inline V chosen(M where, V a, V b) { return where ? a : b; }
inline V absolute(V x) { return chosen(x < 0, -x, x); }
inline V least(V a, V b) { return chosen((a < b) | (a != a), a, b); }
inline V most(V a, V b) { return chosen((a > b) | (a != a), a, b); }

// The nearest integer, halves to the even one, where |x| is below `exact` (else x): the sum with `much` has no digits
// left for a fraction.
inline V rounded(V x) {
  const number much = sizeof(number) == 8 ? number(6755399441055744.0) : number(12582912.0);
  const number exact = sizeof(number) == 8 ? number(2251799813685248.0) : number(4194304.0);
  return chosen(absolute(x) < exact, (x + much) - much, x);
}

inline bool any(M where) {
  for (int k = 0; k < LANES; ++k)
    if (where[k]) return true;
  return false;
}

constexpr number FAR = sizeof(number) == 8 ? 1e5 : 1e3;  // larger angles are left to the C library

// Sine and cosine of r within an eighth of a turn of zero, by their series, whose remainders are below rounding there.
inline V sine_near(V r) {
  const V z = r * r;
  V sum = all(number(1.0 / 355687428096000.0));
  const double inverse[] = {-1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0,
                            -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
  for (double by : inverse) sum = sum * z + number(by);
  return r + r * z * sum;
}
inline V cosine_near(V r) {
  const V z = r * r;
  V sum = all(number(-1.0 / 6402373705728000.0));
  const double inverse[] = {1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0,
                            1.0 / 40320.0,          -1.0 / 720.0,         1.0 / 24.0};
  for (double by : inverse) sum = sum * z + number(by);
  return all(1) - (number(0.5) * z - z * z * sum);
}

// Angles minus the nearest multiple of a quarter turn, and that multiple modulo four: -1, 0, 1 or +-2. A quarter turn
// is subtracted in parts with few digits, so that products with integers are exact.
inline V reduced(V x, V& quarter) {
  const V turns = rounded(x * number(0.63661977236758134308));
  quarter = turns - 4 * rounded(turns * number(0.25));
  if (sizeof(number) == 8)
    return ((x - turns * number(0x1.921fb544p+0)) - turns * number(0x1.0b4611a6p-34)) - turns * number(0x1.3198a2e037073p-69);
  return ((x - turns * number(0x1.92p+0)) - turns * number(0x1.fb4p-12)) - turns * number(0x1.4442d2p-24);
}

inline V sine(V x) {
  if (any(~(absolute(x) < FAR))) {
    for (int k = 0; k < LANES; ++k) x[k] = of_each::sin(x[k]);
    return x;
  }
  V quarter;
  const V r = reduced(x, quarter);
  const V value = chosen((quarter == 1) | (quarter == -1), cosine_near(r), sine_near(r));
  return chosen((quarter == 2) | (quarter == -2) | (quarter == -1), -value, value);
}
inline V cosine(V x) {
  if (any(~(absolute(x) < FAR))) {
    for (int k = 0; k < LANES; ++k) x[k] = of_each::cos(x[k]);
    return x;
  }
  V quarter;
  const V r = reduced(x, quarter);
  const V value = chosen((quarter == 1) | (quarter == -1), sine_near(r), cosine_near(r));
  return chosen((quarter == 2) | (quarter == -2) | (quarter == 1), -value, value);
}

inline M negative(V x) {  // also True for minus zero
  M bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits < 0;
}

// Arc tangent of x up to a sixteenth of a turn: x + x z P(z) with z = x^2 and P interpolated at Chebyshev points, with
// an error of 2e-19.
inline V arctan_near(V x) {
  const V z = x * x;
  V sum = all(number(0.016285756855221028291));
  const double others[] = {-0.034570561981427746882, 0.045515932206265491693, -0.052304542706502445183,
                           0.058789289978347751327,  -0.066664248857382553335, 0.076922963750321423991,
                           -0.090909087535008768442, 0.11111111105155446565,   -0.14285714285659827606,
                           0.19999999999999804526,   -0.33333333333333333217};
  for (double by : others) sum = sum * z + number(by);
  return x + x * z * sum;
}

// The angle of (x, y) from the x axis, as atan2(y, x). The smaller divided by the larger of |x| and |y| is the tangent
// of an angle up to an eighth of a turn; beyond a sixteenth the difference to an eighth is computed.
inline V angle(V y, V x) {
  const V ax = absolute(x), ay = absolute(y);
  const V larger = chosen(ax > ay, ax, ay), smaller = chosen(ax > ay, ay, ax);
  const M beyond = smaller > number(0.41421356237309504880) * larger;
  const V over = chosen(beyond, smaller - larger, smaller), under = chosen(beyond, smaller + larger, larger);
  const V near = arctan_near(over / chosen(larger == 0, all(1), under));
  V found = chosen(beyond, near + number(0.78539816339744830962), near);
  found = chosen(ay > ax, number(1.57079632679489661923) - found, found);
  found = chosen(negative(x), number(3.14159265358979323846) - found, found);
  found = chosen(negative(y), -found, found);
  return chosen((x != x) | (y != y), x + y, found);
}

// Functions of contacts and inelastic materials, which are few: by the C library, lane by lane.
inline V exponential(V x) {
  for (int k = 0; k < LANES; ++k) x[k] = of_each::exp(x[k]);
  return x;
}
inline V exponential_less_one(V x) {
  for (int k = 0; k < LANES; ++k) x[k] = of_each::expm1(x[k]);
  return x;
}
inline V logarithm(V x) {
  for (int k = 0; k < LANES; ++k) x[k] = of_each::log(x[k]);
  return x;
}
inline V hyperbolic_tangent(V x) {
  for (int k = 0; k < LANES; ++k) x[k] = of_each::tanh(x[k]);
  return x;
}
inline V sigmoid(V x) { return 1 / (1 + exponential(-x)); }
inline V softplus(V x, V threshold) {
  for (int k = 0; k < LANES; ++k) x[k] = x[k] > threshold[k] ? x[k] : of_each::log1p(of_each::exp(x[k]));
  return x;
}

}  // namespace
