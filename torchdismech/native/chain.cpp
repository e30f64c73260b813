// Chains of rigid bodies: torques of a motion; H = M(q) + diagonal factored by articulated bodies, and solved with, many robots at once, one
// robot in each lane of a vector. `torchdismech/rigid/planar.py` and `spatial.py` say the same in torch.
//
// Arrays are (rows, robots) or (rows, parts, robots): parts are diagonals that share their inertia. Numbers of the
// diagonal and of all that follows from it may be complex, then a number is two vectors. Bodies are eliminated from the
// tip to the base: what hangs on a joint shows an inertia J about it, a mass M and a coupling C of both.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

template <typename T> struct Lanes;
template <> struct Lanes<double> { typedef double vec __attribute__((vector_size(VECTOR_BYTES))); };

template <typename V> struct Complex {
  V re, im;
};
template <typename V> Complex<V> operator+(Complex<V> a, Complex<V> b) { return {a.re + b.re, a.im + b.im}; }
template <typename V> Complex<V> operator-(Complex<V> a, Complex<V> b) { return {a.re - b.re, a.im - b.im}; }
template <typename V> Complex<V> operator+(Complex<V> a, V b) { return {a.re + b, a.im}; }
template <typename V> Complex<V> operator*(Complex<V> a, V b) { return {a.re * b, a.im * b}; }
template <typename V> Complex<V> operator*(Complex<V> a, Complex<V> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

// How numbers stand in memory: S is a real number there, W how many make a number.
template <typename S> struct Real {
  typedef S scalar;
  typedef typename Lanes<S>::vec vec;
  typedef vec number;
  static constexpr int W = 1;
  static number zero() { return vec{}; }
  static number inverse(number x) { return 1 / x; }
};
template <typename S> struct Twofold {
  typedef S scalar;
  typedef typename Lanes<S>::vec vec;
  typedef Complex<vec> number;
  static constexpr int W = 2;
  static number zero() { return {vec{}, vec{}}; }
  static number inverse(number x) {
    vec scale = 1 / (x.re * x.re + x.im * x.im);
    return {x.re * scale, -x.im * scale};
  }
};

// The lanes of one vector: robots [first, first + count) of all.
template <typename K> struct Group {
  typedef typename K::scalar S;
  typedef typename K::vec V;
  typedef typename K::number N;
  static constexpr int64_t lanes = VECTOR_BYTES / sizeof(S);
  int64_t robots, first, count;

  V real(const S* at, int64_t row) const {
    V x{};
    const S* from = at + row * robots + first;
    if (count == lanes) {
      std::memcpy(&x, from, sizeof(V));
      return x;
    }
    for (int64_t i = 0; i < count; i++) x[i] = from[i];
    for (int64_t i = count; i < lanes; i++) x[i] = from[0];  // a robot again: nothing is divided by zero
    return x;
  }
  N number(const S* at, int64_t row) const {
    const S* from = at + K::W * (row * robots + first);
    if constexpr (K::W == 1) {
      return real(at, row);
    } else {
      N x = K::zero();
      for (int64_t i = 0; i < lanes; i++) {
        int64_t k = i < count ? i : 0;
        x.re[i] = from[2 * k], x.im[i] = from[2 * k + 1];
      }
      return x;
    }
  }
  void store(S* at, int64_t row, N x) const {
    S* to = at + K::W * (row * robots + first);
    if constexpr (K::W == 1)
      if (count == lanes) {
        std::memcpy(to, &x, sizeof(V));
        return;
      }
    for (int64_t i = 0; i < count; i++) {
      if constexpr (K::W == 1) to[i] = x[i];
      else to[2 * i] = x.re[i], to[2 * i + 1] = x.im[i];
    }
  }
};

template <typename K> Group<K> group(int64_t robots, int64_t k) {
  int64_t lanes = Group<K>::lanes, first = k * lanes;
  return {robots, first, std::min(lanes, robots - first)};
}

// ---- in the plane ---------------------------------------------------------------------------------------------------

constexpr int64_t PLANE = 4;  // numbers that a joint keeps: inverse of its resistance, its share in turning, x and z

template <typename K, typename S = typename K::scalar>
void plane_factor(int64_t bodies, int64_t parts, int64_t robots, const S* inertia, const S* coupling, const S* mass,
                  const S* arms, const S* diagonal, S* joints, int64_t begin, int64_t end) {
  typedef typename K::number N;
  typedef typename K::vec V;
  for (int64_t g = begin; g < end; g++) {
    Group<K> of = group<K>(robots, g);
    for (int64_t part = 0; part < parts; part++) {
      N j = K::zero(), hx = j, hz = j, mxx = j, mxz = j, mzz = j;
      for (int64_t k = bodies - 1; k >= 0; k--) {
        V m = of.real(mass, k);
        j = j + of.real(inertia, k);
        hx = hx + of.real(coupling, 2 * k), hz = hz + of.real(coupling, 2 * k + 1);
        mxx = mxx + m, mzz = mzz + m;
        N extra = of.number(diagonal, k * parts + part);
        N inverse = K::inverse(j + extra), uj = j * inverse, ux = hx * inverse, uz = hz * inverse;
        N kept[PLANE] = {inverse, uj, ux, uz};
        for (int64_t i = 0; i < PLANE; i++) of.store(joints, (k * PLANE + i) * parts + part, kept[i]);
        if (k == 0) break;
        mxx = mxx - ux * hx, mxz = mxz - ux * hz, mzz = mzz - uz * hz;
        V px = of.real(arms, 2 * (k - 1)), pz = of.real(arms, 2 * (k - 1) + 1);
        N ax = mxx * px + mxz * pz, az = mxz * px + mzz * pz;
        // what the joint resists with, its inertia and coupling pass on
        uj = uj * extra, ux = ux * extra, uz = uz * extra;
        j = uj + ax * px + az * pz + (ux * px + uz * pz) * (V{} + 2);
        hx = ax + ux, hz = az + uz;
      }
    }
  }
}

template <typename K, typename S = typename K::scalar>
void plane_solve(int64_t bodies, int64_t parts, int64_t robots, const S* arms, const S* joints, const S* torque,
                 S* found, int64_t begin, int64_t end) {
  typedef typename K::number N;
  typedef typename K::vec V;
  std::vector<N> eased(bodies);
  for (int64_t g = begin; g < end; g++) {
    Group<K> of = group<K>(robots, g);
    for (int64_t part = 0; part < parts; part++) {
      auto kept = [&](int64_t k, int64_t i) { return of.number(joints, (k * PLANE + i) * parts + part); };
      N moment = K::zero(), fx = moment, fz = moment;
      for (int64_t k = bodies - 1; k >= 0; k--) {
        N left = of.number(torque, k * parts + part) - moment;
        eased[k] = left * kept(k, 0);
        if (k == 0) break;
        V px = of.real(arms, 2 * (k - 1)), pz = of.real(arms, 2 * (k - 1) + 1);
        fx = fx + kept(k, 2) * left, fz = fz + kept(k, 3) * left;
        moment = moment + kept(k, 1) * left + fx * px + fz * pz;
      }
      N turned = eased[0], ax = K::zero(), az = ax;
      of.store(found, part, turned);
      for (int64_t k = 1; k < bodies; k++) {
        ax = ax + turned * of.real(arms, 2 * (k - 1)), az = az + turned * of.real(arms, 2 * (k - 1) + 1);
        N x = eased[k] - kept(k, 1) * turned - kept(k, 2) * ax - kept(k, 3) * az;
        of.store(found, k * parts + part, x);
        turned = turned + x;
      }
    }
  }
}

// The torques that a motion takes: from the base to the tip how bodies move, back what forces that takes.
template <typename K, typename S = typename K::scalar>
void plane_torque(int64_t bodies, int64_t, int64_t robots, const S* along, const S* across, const S* length,
                  const S* centre, const S* mass, const S* inertia, const S* gravity, const S* velocity,
                  const S* acceleration, S* torque, int64_t begin, int64_t end) {
  typedef typename K::vec V;
  std::vector<V> loads(3 * bodies);
  for (int64_t g = begin; g < end; g++) {
    Group<K> of = group<K>(robots, g);
    V turning{}, turned{}, x = -of.real(gravity, 0), z = -of.real(gravity, 1);
    for (int64_t k = 0; k < bodies; k++) {
      turning += of.real(velocity, k), turned += of.real(acceleration, k);
      V spin = turning * turning;
      V bx = turned * of.real(across, 2 * k) - spin * of.real(along, 2 * k);
      V bz = turned * of.real(across, 2 * k + 1) - spin * of.real(along, 2 * k + 1);
      V m = of.real(mass, k), c = of.real(centre, k), l = of.real(length, k);
      loads[3 * k] = m * (x + c * bx), loads[3 * k + 1] = m * (z + c * bz);
      loads[3 * k + 2] = of.real(inertia, k) * turned;
      x += l * bx, z += l * bz;
    }
    V fx{}, fz{}, moment{};
    for (int64_t k = bodies - 1; k >= 0; k--) {
      V c = of.real(centre, k), l = of.real(length, k);
      moment += of.real(across, 2 * k) * (c * loads[3 * k] + l * fx) + loads[3 * k + 2];
      moment += of.real(across, 2 * k + 1) * (c * loads[3 * k + 1] + l * fz);
      of.store(torque, k, moment);
      fx += loads[3 * k], fz += loads[3 * k + 1];
    }
  }
}

// ---- in space -------------------------------------------------------------------------------------------------------

constexpr int64_t SPACE = 7;  // numbers that a joint keeps: inverse of its resistance, its shares in turning and motion

inline int64_t first_joint(int64_t body) { return body == 0 ? 0 : 3 * (body - 1) + 1; }
inline int64_t last_joint(int64_t body) { return 3 * body; }

template <typename A, typename B> auto dot(const A* a, const B* b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

// x + a x b for a real vector a
template <typename N, typename V> void add_cross(N* x, const V* a, const N* b) {
  for (int i = 0; i < 3; i++) {
    int u = (i + 1) % 3, w = (i + 2) % 3;
    x[i] = x[i] + b[w] * a[u] - b[u] * a[w];
  }
}

template <typename K, typename S = typename K::scalar>
void space_factor(int64_t bodies, int64_t parts, int64_t robots, const S* inertia, const S* coupling, const S* mass,
                  const S* axes, const S* arms, const S* diagonal, S* joints, int64_t begin, int64_t end) {
  typedef typename K::number N;
  typedef typename K::vec V;
  for (int64_t g = begin; g < end; g++) {
    Group<K> of = group<K>(robots, g);
    for (int64_t part = 0; part < parts; part++) {
      N j[3][3], c[3][3], m[3][3];
      for (int i = 0; i < 9; i++) j[i / 3][i % 3] = c[i / 3][i % 3] = m[i / 3][i % 3] = K::zero();
      for (int64_t body = bodies - 1; body >= 0; body--) {
        V own = of.real(mass, body), x[3];
        for (int i = 0; i < 3; i++) {
          for (int n = 0; n < 3; n++) j[i][n] = j[i][n] + of.real(inertia, 9 * body + 3 * i + n);
          x[i] = of.real(coupling, 3 * body + i);
          m[i][i] = m[i][i] + own;
        }
        for (int i = 0; i < 3; i++) {  // the cross product matrix of the mass times its centre's place
          int u = (i + 1) % 3, w = (i + 2) % 3;
          c[i][u] = c[i][u] + (-x[w]), c[i][w] = c[i][w] + x[u];
        }
        for (int64_t k = last_joint(body); k >= first_joint(body); k--) {
          V a[3];
          for (int i = 0; i < 3; i++) a[i] = of.real(axes, 3 * k + i);
          N ja[3], ca[3], turns[3], moves[3];
          for (int i = 0; i < 3; i++) {
            ja[i] = dot(j[i], a);
            ca[i] = c[0][i] * a[0] + c[1][i] * a[1] + c[2][i] * a[2];
          }
          N inverse = K::inverse(dot(ja, a) + of.number(diagonal, k * parts + part));
          of.store(joints, k * SPACE * parts + part, inverse);
          for (int i = 0; i < 3; i++) {
            turns[i] = ja[i] * inverse, moves[i] = ca[i] * inverse;
            of.store(joints, (k * SPACE + 1 + i) * parts + part, turns[i]);
            of.store(joints, (k * SPACE + 4 + i) * parts + part, moves[i]);
          }
          for (int i = 0; i < 3; i++)
            for (int n = 0; n < 3; n++) {
              j[i][n] = j[i][n] - turns[i] * ja[n];
              c[i][n] = c[i][n] - turns[i] * ca[n];
              m[i][n] = m[i][n] - moves[i] * ca[n];
            }
        }
        if (body == 0) break;
        // about the end of the body before: C + p x M and J + p x C^T + (C + p x M) x p
        V p[3];
        for (int i = 0; i < 3; i++) p[i] = of.real(arms, 3 * (body - 1) + i);
        N before[3][3];
        for (int n = 0; n < 3; n++) {
          N column[3] = {c[n][0], c[n][1], c[n][2]}, added[3] = {j[0][n], j[1][n], j[2][n]};
          add_cross(added, p, column);
          for (int i = 0; i < 3; i++) before[i][n] = added[i];
        }
        for (int n = 0; n < 3; n++) {
          N column[3] = {m[0][n], m[1][n], m[2][n]}, added[3] = {c[0][n], c[1][n], c[2][n]};
          add_cross(added, p, column);
          for (int i = 0; i < 3; i++) c[i][n] = added[i];
        }
        for (int i = 0; i < 3; i++)
          for (int n = i; n < 3; n++) {
            int u = (n + 1) % 3, w = (n + 2) % 3;
            j[i][n] = j[n][i] = before[i][n] + c[i][w] * p[u] - c[i][u] * p[w];
          }
      }
    }
  }
}

template <typename K, typename S = typename K::scalar>
void space_solve(int64_t bodies, int64_t parts, int64_t robots, const S* axes, const S* arms, const S* joints,
                 const S* torque, S* found, int64_t begin, int64_t end) {
  typedef typename K::number N;
  typedef typename K::vec V;
  std::vector<N> eased(last_joint(bodies - 1) + 1);
  for (int64_t g = begin; g < end; g++) {
    Group<K> of = group<K>(robots, g);
    for (int64_t part = 0; part < parts; part++) {
      auto kept = [&](int64_t k, int64_t i) { return of.number(joints, (k * SPACE + i) * parts + part); };
      N moment[3], force[3], turned[3], moved[3];
      for (int i = 0; i < 3; i++) moment[i] = force[i] = turned[i] = moved[i] = K::zero();
      for (int64_t body = bodies - 1; body >= 0; body--) {
        for (int64_t k = last_joint(body); k >= first_joint(body); k--) {
          V a[3];
          for (int i = 0; i < 3; i++) a[i] = of.real(axes, 3 * k + i);
          N left = of.number(torque, k * parts + part) - dot(moment, a);
          eased[k] = left * kept(k, 0);
          for (int i = 0; i < 3; i++) {
            moment[i] = moment[i] + kept(k, 1 + i) * left;
            force[i] = force[i] + kept(k, 4 + i) * left;
          }
        }
        if (body == 0) break;
        V p[3];
        for (int i = 0; i < 3; i++) p[i] = of.real(arms, 3 * (body - 1) + i);
        add_cross(moment, p, force);
      }
      for (int64_t body = 0; body < bodies; body++) {
        if (body > 0) {
          V p[3];
          for (int i = 0; i < 3; i++) p[i] = -of.real(arms, 3 * (body - 1) + i);
          add_cross(moved, p, turned);  // turned x p
        }
        for (int64_t k = first_joint(body); k <= last_joint(body); k++) {
          N x = eased[k];
          for (int i = 0; i < 3; i++) x = x - kept(k, 1 + i) * turned[i] - kept(k, 4 + i) * moved[i];
          of.store(found, k * parts + part, x);
          for (int i = 0; i < 3; i++) turned[i] = turned[i] + x * of.real(axes, 3 * k + i);
        }
      }
    }
  }
}

// x + a x b
template <typename V> void add_product(V* x, const V* a, const V* b) {
  for (int i = 0; i < 3; i++) {
    int u = (i + 1) % 3, w = (i + 2) % 3;
    x[i] += a[u] * b[w] - a[w] * b[u];
  }
}

template <typename K, typename S = typename K::scalar>
void space_torque(int64_t bodies, int64_t, int64_t robots, const S* axes, const S* frames, const S* length,
                  const S* centre, const S* mass, const S* inertia, const S* gravity, const S* velocity,
                  const S* acceleration, S* torque, int64_t begin, int64_t end) {
  typedef typename K::vec V;
  std::vector<V> forces(3 * bodies), moments(3 * bodies);
  for (int64_t g = begin; g < end; g++) {
    Group<K> of = group<K>(robots, g);
    V turning[3] = {}, turned[3] = {}, place[3];
    for (int i = 0; i < 3; i++) place[i] = -of.real(gravity, i);
    for (int64_t body = 0; body < bodies; body++) {
      for (int64_t k = first_joint(body); k <= last_joint(body); k++) {
        V rate = of.real(velocity, k), change = of.real(acceleration, k), axis[3], step[3];
        for (int i = 0; i < 3; i++) axis[i] = of.real(axes, 3 * k + i), step[i] = axis[i] * rate;
        add_product(turned, turning, step);
        for (int i = 0; i < 3; i++) turning[i] += step[i], turned[i] += axis[i] * change;
      }
      V frame[3][3], across[3] = {}, bend[3] = {};
      for (int i = 0; i < 9; i++) frame[i / 3][i % 3] = of.real(frames, 9 * body + i);
      add_product(across, turning, frame[0]);
      add_product(bend, turned, frame[0]);
      add_product(bend, turning, across);
      V m = of.real(mass, body), c = of.real(centre, body), l = of.real(length, body);
      V about[3], spin[3], own[3] = {}, local[3];
      for (int i = 0; i < 3; i++) {
        about[i] = of.real(inertia, 3 * body + i);
        spin[i] = dot(frame[i], turning), local[i] = about[i] * spin[i];
        own[i] = about[i] * dot(frame[i], turned);
      }
      add_product(own, spin, local);
      V* force = &forces[3 * body];
      V* moment = &moments[3 * body];
      for (int i = 0; i < 3; i++) {
        force[i] = m * (place[i] + c * bend[i]), place[i] += l * bend[i];
        moment[i] = own[0] * frame[0][i] + own[1] * frame[1][i] + own[2] * frame[2][i];
      }
    }
    V beyond[3] = {}, moment[3] = {};
    for (int64_t body = bodies - 1; body >= 0; body--) {
      V c = of.real(centre, body), l = of.real(length, body), e[3], load[3];
      for (int i = 0; i < 3; i++) {
        e[i] = of.real(frames, 9 * body + i), load[i] = c * forces[3 * body + i] + l * beyond[i];
        moment[i] += moments[3 * body + i], beyond[i] += forces[3 * body + i];
      }
      add_product(moment, e, load);
      for (int64_t k = last_joint(body); k >= first_joint(body); k--) {
        V sum{};
        for (int i = 0; i < 3; i++) sum += of.real(axes, 3 * k + i) * moment[i];
        of.store(torque, k, sum);
      }
    }
  }
}

}  // namespace

#define TORQUES(KIND)                                                                                                  \
  extern "C" void KIND##_torque_float64(int64_t bodies, int64_t parts, int64_t robots, const double* first,           \
                                        const double* second, const double* length, const double* centre,             \
                                        const double* mass, const double* inertia, const double* gravity,             \
                                        const double* velocity, const double* acceleration, double* torque,           \
                                        int64_t begin, int64_t end) {                                                 \
    KIND##_torque<Real<double>>(bodies, parts, robots, first, second, length, centre, mass, inertia, gravity,         \
                                velocity, acceleration, torque, begin, end);                                          \
  }

TORQUES(plane)
TORQUES(space)

#define CHAINS(NAME, KIND, S)                                                                                         \
  extern "C" void plane_factor_##NAME(int64_t bodies, int64_t parts, int64_t robots, const S* inertia,                \
                                      const S* coupling, const S* mass, const S* arms, const S* diagonal, S* joints,  \
                                      int64_t begin, int64_t end) {                                                   \
    plane_factor<KIND<S>>(bodies, parts, robots, inertia, coupling, mass, arms, diagonal, joints, begin, end);        \
  }                                                                                                                   \
  extern "C" void plane_solve_##NAME(int64_t bodies, int64_t parts, int64_t robots, const S* arms, const S* joints,   \
                                     const S* torque, S* found, int64_t begin, int64_t end) {                         \
    plane_solve<KIND<S>>(bodies, parts, robots, arms, joints, torque, found, begin, end);                             \
  }                                                                                                                   \
  extern "C" void space_factor_##NAME(int64_t bodies, int64_t parts, int64_t robots, const S* inertia,                \
                                      const S* coupling, const S* mass, const S* axes, const S* arms,                 \
                                      const S* diagonal, S* joints, int64_t begin, int64_t end) {                     \
    space_factor<KIND<S>>(bodies, parts, robots, inertia, coupling, mass, axes, arms, diagonal, joints, begin, end);  \
  }                                                                                                                   \
  extern "C" void space_solve_##NAME(int64_t bodies, int64_t parts, int64_t robots, const S* axes, const S* arms,     \
                                     const S* joints, const S* torque, S* found, int64_t begin, int64_t end) {        \
    space_solve<KIND<S>>(bodies, parts, robots, axes, arms, joints, torque, found, begin, end);                       \
  }

CHAINS(float64, Real, double)
CHAINS(complex128, Twofold, double)
