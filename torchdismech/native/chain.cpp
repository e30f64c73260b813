// Chains of rigid bodies: the torques that a motion takes; the factorization of H = M(q) + diagonal by the
// articulated-body algorithm, and solutions with it. Many robots are computed at once, one in each lane of a vector.
// `torchdismech/rigid/planar.py` and `spatial.py` do the same in torch.
//
// Arrays are (rows, parts, robots), with any strides: numbers that robots or parts share are stored once. Parts are
// several states of a robot whose torques are computed, or several diagonals with the same mass matrix. The diagonal
// and all that follows from it may be complex; a number is then two vectors. Bodies are eliminated from the tip to the
// base. The bodies beyond a joint have there an articulated inertia J, a mass M and a coupling C of both.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lanes.h"

namespace {

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

// How numbers are stored in memory: S is a real number there, and W of them make a number.
template <typename S> struct Real {
  typedef S scalar;
  typedef Vec<S> vec;
  typedef vec number;
  static constexpr int W = 1;
  static number zero() { return vec{}; }
  static number inverse(number x) { return 1 / x; }
};
template <typename S> struct Twofold {
  typedef S scalar;
  typedef Vec<S> vec;
  typedef Complex<vec> number;
  static constexpr int W = 2;
  static number zero() { return {vec{}, vec{}}; }
  static number inverse(number x) {
    vec scale = 1 / (x.re * x.re + x.im * x.im);
    return {x.re * scale, -x.im * scale};
  }
};

// An array in memory, with strides by row, part and robot, 0 where these share numbers.
template <typename S> struct Array {
  const S* at;
  int64_t row, part, robot;

  Array from(int64_t first) const { return {at + first * robot, row, part, robot}; }
};

// One part of the robots [first, first + count), which are the lanes of a vector.
template <typename K> struct Group {
  typedef typename K::scalar S;
  typedef typename K::vec V;
  typedef typename K::number N;
  static constexpr int64_t lanes = VECTOR_BYTES / sizeof(S);
  int64_t parts, robots, part, first, count;

  const S* begin(const Array<S>& array, int64_t row, int64_t width) const {
    return array.at + width * (row * array.row + part * array.part + first * array.robot);
  }
  int64_t robot(int64_t lane) const { return lane < count ? lane : 0; }  // unused lanes repeat one: no division by zero

  V real(const Array<S>& array, int64_t row) const {
    const S* from = begin(array, row, 1);
    V x{};
    if (array.robot == 0) return x + *from;
    if (array.robot == 1 && count == lanes) {
      std::memcpy(&x, from, sizeof(V));
      return x;
    }
    for (int64_t i = 0; i < lanes; i++) x[i] = from[robot(i) * array.robot];
    return x;
  }
  N number(const Array<S>& array, int64_t row) const {
    if constexpr (K::W == 1) {
      return real(array, row);
    } else {
      const S* from = begin(array, row, 2);
      N x = K::zero();
      for (int64_t i = 0; i < lanes; i++) {
        int64_t k = 2 * robot(i) * array.robot;
        x.re[i] = from[k], x.im[i] = from[k + 1];
      }
      return x;
    }
  }
  // Arrays that are written are contiguous (rows, parts, robots).
  void store(S* at, int64_t row, N x) const {
    S* to = at + K::W * ((row * parts + part) * robots + first);
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

// Call `each(group)` for all parts of some vectors of robots.
template <typename K, typename F>
void for_groups(int64_t parts, int64_t robots, int64_t begin, int64_t end, F each) {
  const int64_t lanes = Group<K>::lanes;
  for (int64_t g = begin; g < end; g++)
    for (int64_t part = 0; part < parts; part++)
      each(Group<K>{parts, robots, part, g * lanes, std::min(lanes, robots - g * lanes)});
}

// ---- in the plane ---------------------------------------------------------------------------------------------------

constexpr int64_t PLANE = 4;  // numbers stored per joint: 1 / (J + diagonal), and J, C_x and C_z times that

// A posture: unit vectors along and across the bodies, x then z, and constants.
template <typename S> struct Plane {
  Array<S> along, across, length, centre, mass, inertia, gravity;

  Plane from(int64_t first) const {
    return {along.from(first), across.from(first),  length.from(first), centre.from(first),
            mass.from(first),  inertia.from(first), gravity.from(first)};
  }
};

// Factor H; given[0] is the diagonal. `joints` gets PLANE numbers per joint.
template <typename K, typename S = typename K::scalar>
void plane_factor(int64_t bodies, int64_t parts, int64_t robots, const Plane<S>& chain, const Array<S>* given,
                  S* joints, int64_t begin, int64_t end) {
  typedef typename K::number N;
  typedef typename K::vec V;
  for_groups<K>(parts, robots, begin, end, [&](Group<K> of) {
    N j = K::zero(), hx = j, hz = j, mxx = j, mxz = j, mzz = j;
    for (int64_t k = bodies - 1; k >= 0; k--) {
      V m = of.real(chain.mass, k), c = of.real(chain.centre, k), mc = m * c;
      j = j + (of.real(chain.inertia, k) + mc * c);
      hx = hx + mc * of.real(chain.across, 2 * k), hz = hz + mc * of.real(chain.across, 2 * k + 1);
      mxx = mxx + m, mzz = mzz + m;
      N extra = of.number(given[0], k);
      N inverse = K::inverse(j + extra), uj = j * inverse, ux = hx * inverse, uz = hz * inverse;
      N kept[PLANE] = {inverse, uj, ux, uz};
      for (int64_t i = 0; i < PLANE; i++) of.store(joints, k * PLANE + i, kept[i]);
      if (k == 0) break;
      mxx = mxx - ux * hx, mxz = mxz - ux * hz, mzz = mzz - uz * hz;
      V l = of.real(chain.length, k - 1);
      V px = l * of.real(chain.across, 2 * (k - 1)), pz = l * of.real(chain.across, 2 * (k - 1) + 1);
      N ax = mxx * px + mxz * pz, az = mxz * px + mzz * pz;
      // the part of J and C that passes the joint, because the diagonal resists its rotation
      uj = uj * extra, ux = ux * extra, uz = uz * extra;
      j = uj + ax * px + az * pz + (ux * px + uz * pz) * (V{} + 2);
      hx = ax + ux, hz = az + uz;
    }
  });
}

// Solve H x = torques; given[0] are the joints from `plane_factor`, given[1] the torques.
template <typename K, typename S = typename K::scalar>
void plane_solve(int64_t bodies, int64_t parts, int64_t robots, const Plane<S>& chain, const Array<S>* given, S* found,
                 int64_t begin, int64_t end) {
  typedef typename K::number N;
  typedef typename K::vec V;
  std::vector<N> motion_alone(bodies);
  for_groups<K>(parts, robots, begin, end, [&](Group<K> of) {
    auto kept = [&](int64_t k, int64_t i) { return of.number(given[0], k * PLANE + i); };
    N moment = K::zero(), fx = moment, fz = moment;
    for (int64_t k = bodies - 1; k >= 0; k--) {
      N left = of.number(given[1], k) - moment;
      motion_alone[k] = left * kept(k, 0);
      if (k == 0) break;
      V l = of.real(chain.length, k - 1);
      V px = l * of.real(chain.across, 2 * (k - 1)), pz = l * of.real(chain.across, 2 * (k - 1) + 1);
      fx = fx + kept(k, 2) * left, fz = fz + kept(k, 3) * left;
      moment = moment + kept(k, 1) * left + fx * px + fz * pz;
    }
    N turned = motion_alone[0], ax = K::zero(), az = ax;
    of.store(found, 0, turned);
    for (int64_t k = 1; k < bodies; k++) {
      V l = of.real(chain.length, k - 1);
      V px = l * of.real(chain.across, 2 * (k - 1)), pz = l * of.real(chain.across, 2 * (k - 1) + 1);
      ax = ax + turned * px, az = az + turned * pz;
      N x = motion_alone[k] - kept(k, 1) * turned - kept(k, 2) * ax - kept(k, 3) * az;
      of.store(found, k, x);
      turned = turned + x;
    }
  });
}

// The torques of a motion with velocities given[0] and accelerations given[1] of the joints (recursive Newton-Euler):
// the motion of the bodies from the base to the tip, and the forces that it takes from the tip to the base.
template <typename K, typename S = typename K::scalar>
void plane_torque(int64_t bodies, int64_t parts, int64_t robots, const Plane<S>& chain, const Array<S>* given,
                  S* torque, int64_t begin, int64_t end) {
  typedef typename K::vec V;
  std::vector<V> loads(3 * bodies);
  for_groups<K>(parts, robots, begin, end, [&](Group<K> of) {
    V turning{}, turned{}, x = -of.real(chain.gravity, 0), z = -of.real(chain.gravity, 1);
    for (int64_t k = 0; k < bodies; k++) {
      turning += of.real(given[0], k), turned += of.real(given[1], k);
      V spin = turning * turning;
      V bx = turned * of.real(chain.across, 2 * k) - spin * of.real(chain.along, 2 * k);
      V bz = turned * of.real(chain.across, 2 * k + 1) - spin * of.real(chain.along, 2 * k + 1);
      V m = of.real(chain.mass, k), c = of.real(chain.centre, k), l = of.real(chain.length, k);
      loads[3 * k] = m * (x + c * bx), loads[3 * k + 1] = m * (z + c * bz);
      loads[3 * k + 2] = of.real(chain.inertia, k) * turned;
      x += l * bx, z += l * bz;
    }
    V fx{}, fz{}, moment{};
    for (int64_t k = bodies - 1; k >= 0; k--) {
      V c = of.real(chain.centre, k), l = of.real(chain.length, k);
      moment += of.real(chain.across, 2 * k) * (c * loads[3 * k] + l * fx) + loads[3 * k + 2];
      moment += of.real(chain.across, 2 * k + 1) * (c * loads[3 * k + 1] + l * fz);
      of.store(torque, k, moment);
      fx += loads[3 * k], fz += loads[3 * k + 1];
    }
  });
}

// ---- in space -------------------------------------------------------------------------------------------------------

constexpr int64_t SPACE = 7;  // numbers stored per joint: 1 / (a J a + diagonal), and J a and C^T a times that

// A posture: axes of the joints and x, y, z axes of the bodies, and constants, inertia about the body's axes.
template <typename S> struct Space {
  Array<S> axes, frames, length, centre, mass, inertia, gravity;

  Space from(int64_t first) const {
    return {axes.from(first), frames.from(first),  length.from(first), centre.from(first),
            mass.from(first), inertia.from(first), gravity.from(first)};
  }
};

inline int64_t first_joint(int64_t body) { return body == 0 ? 0 : 3 * (body - 1) + 1; }
inline int64_t last_joint(int64_t body) { return 3 * body; }

// The axes of the joints, then the x, y and z axes of the bodies; given[0] are cosines and given[1] sines of the joint
// angles. The first joint turns the base about its z axis; then each body has joints about z, y and x. The base has x
// ahead and y upwards.
template <typename K, typename S = typename K::scalar>
void space_turn(int64_t bodies, int64_t parts, int64_t robots, const Array<S>* given, S* found, int64_t begin,
                int64_t end) {
  typedef typename K::vec V;
  const int64_t joints = last_joint(bodies - 1) + 1;
  for_groups<K>(parts, robots, begin, end, [&](Group<K> of) {
    V frame[3][3] = {};
    frame[0][0] += 1, frame[1][2] += 1, frame[2][1] -= 1;
    for (int64_t body = 0; body < bodies; body++) {
      for (int64_t k = first_joint(body), axis = 2; k <= last_joint(body); k++, axis--) {
        V c = of.real(given[0], k), s = of.real(given[1], k), *u = frame[(axis + 1) % 3], *w = frame[(axis + 2) % 3];
        for (int i = 0; i < 3; i++) {
          of.store(found, 3 * k + i, frame[axis][i]);
          V turned = u[i] * c + w[i] * s;
          w[i] = w[i] * c - u[i] * s, u[i] = turned;
        }
      }
      for (int i = 0; i < 9; i++) of.store(found, 3 * joints + 9 * body + i, frame[i / 3][i % 3]);
    }
  });
}

template <typename A, typename B> auto dot(const A* a, const B* b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

// x + a x b for a real vector a
template <typename N, typename V> void add_cross(N* x, const V* a, const N* b) {
  for (int i = 0; i < 3; i++) {
    int u = (i + 1) % 3, w = (i + 2) % 3;
    x[i] = x[i] + b[w] * a[u] - b[u] * a[w];
  }
}

// The vector from a body's joints to those of the next.
template <typename K, typename S> void find_arm(Group<K> of, const Space<S>& chain, int64_t body, typename K::vec* arm) {
  for (int i = 0; i < 3; i++) arm[i] = of.real(chain.length, body) * of.real(chain.frames, 9 * body + i);
}

// Factor H; given[0] is the diagonal. `joints` gets SPACE numbers per joint.
template <typename K, typename S = typename K::scalar>
void space_factor(int64_t bodies, int64_t parts, int64_t robots, const Space<S>& chain, const Array<S>* given,
                  S* joints, int64_t begin, int64_t end) {
  typedef typename K::number N;
  typedef typename K::vec V;
  for_groups<K>(parts, robots, begin, end, [&](Group<K> of) {
    N j[3][3], c[3][3], m[3][3];
    for (int i = 0; i < 9; i++) j[i / 3][i % 3] = c[i / 3][i % 3] = m[i / 3][i % 3] = K::zero();
    for (int64_t body = bodies - 1; body >= 0; body--) {
      // inertia about the joints: about the body's x axis that about the centre, about the others more
      V own = of.real(chain.mass, body), away = of.real(chain.centre, body), about[3], frame[3][3], x[3];
      for (int i = 0; i < 9; i++) frame[i / 3][i % 3] = of.real(chain.frames, 9 * body + i);
      for (int i = 0; i < 3; i++) {
        about[i] = of.real(chain.inertia, 3 * body + i);
        if (i > 0) about[i] += own * away * away;
        x[i] = own * away * frame[0][i];
        m[i][i] = m[i][i] + own;
      }
      for (int i = 0; i < 3; i++)
        for (int n = 0; n < 3; n++) {
          V sum{};
          for (int axis = 0; axis < 3; axis++) sum += about[axis] * frame[axis][i] * frame[axis][n];
          j[i][n] = j[i][n] + sum;
        }
      for (int i = 0; i < 3; i++) {  // cross-product matrix of mass times the vector to the centre
        int u = (i + 1) % 3, w = (i + 2) % 3;
        c[i][u] = c[i][u] + (-x[w]), c[i][w] = c[i][w] + x[u];
      }
      for (int64_t k = last_joint(body); k >= first_joint(body); k--) {
        V a[3];
        for (int i = 0; i < 3; i++) a[i] = of.real(chain.axes, 3 * k + i);
        N ja[3], ca[3], turns[3], moves[3];
        for (int i = 0; i < 3; i++) {
          ja[i] = dot(j[i], a);
          ca[i] = c[0][i] * a[0] + c[1][i] * a[1] + c[2][i] * a[2];
        }
        N inverse = K::inverse(dot(ja, a) + of.number(given[0], k));
        of.store(joints, k * SPACE, inverse);
        for (int i = 0; i < 3; i++) {
          turns[i] = ja[i] * inverse, moves[i] = ca[i] * inverse;
          of.store(joints, k * SPACE + 1 + i, turns[i]);
          of.store(joints, k * SPACE + 4 + i, moves[i]);
        }
        for (int i = 0; i < 3; i++)
          for (int n = 0; n < 3; n++) {
            j[i][n] = j[i][n] - turns[i] * ja[n];
            c[i][n] = c[i][n] - turns[i] * ca[n];
            m[i][n] = m[i][n] - moves[i] * ca[n];
          }
      }
      if (body == 0) break;
      // move the reference point to the joints of the body before: C + p x M and J + p x C^T + (C + p x M) x p
      V p[3];
      find_arm(of, chain, body - 1, p);
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
  });
}

// Solve H x = torques; given[0] are the joints from `space_factor`, given[1] the torques.
template <typename K, typename S = typename K::scalar>
void space_solve(int64_t bodies, int64_t parts, int64_t robots, const Space<S>& chain, const Array<S>* given, S* found,
                 int64_t begin, int64_t end) {
  typedef typename K::number N;
  typedef typename K::vec V;
  std::vector<N> motion_alone(last_joint(bodies - 1) + 1);
  for_groups<K>(parts, robots, begin, end, [&](Group<K> of) {
    auto kept = [&](int64_t k, int64_t i) { return of.number(given[0], k * SPACE + i); };
    N moment[3], force[3], turned[3], moved[3];
    for (int i = 0; i < 3; i++) moment[i] = force[i] = turned[i] = moved[i] = K::zero();
    for (int64_t body = bodies - 1; body >= 0; body--) {
      for (int64_t k = last_joint(body); k >= first_joint(body); k--) {
        V a[3];
        for (int i = 0; i < 3; i++) a[i] = of.real(chain.axes, 3 * k + i);
        N left = of.number(given[1], k) - dot(moment, a);
        motion_alone[k] = left * kept(k, 0);
        for (int i = 0; i < 3; i++) {
          moment[i] = moment[i] + kept(k, 1 + i) * left;
          force[i] = force[i] + kept(k, 4 + i) * left;
        }
      }
      if (body == 0) break;
      V p[3];
      find_arm(of, chain, body - 1, p);
      add_cross(moment, p, force);
    }
    for (int64_t body = 0; body < bodies; body++) {
      if (body > 0) {
        V p[3];
        find_arm(of, chain, body - 1, p);
        for (int i = 0; i < 3; i++) p[i] = -p[i];
        add_cross(moved, p, turned);  // turned x p
      }
      for (int64_t k = first_joint(body); k <= last_joint(body); k++) {
        N x = motion_alone[k];
        for (int i = 0; i < 3; i++) x = x - kept(k, 1 + i) * turned[i] - kept(k, 4 + i) * moved[i];
        of.store(found, k, x);
        for (int i = 0; i < 3; i++) turned[i] = turned[i] + x * of.real(chain.axes, 3 * k + i);
      }
    }
  });
}

// x + a x b
template <typename V> void add_product(V* x, const V* a, const V* b) {
  for (int i = 0; i < 3; i++) {
    int u = (i + 1) % 3, w = (i + 2) % 3;
    x[i] += a[u] * b[w] - a[w] * b[u];
  }
}

// The torques of a motion, as `plane_torque`: given[0] are velocities and given[1] accelerations of the joints.
template <typename K, typename S = typename K::scalar>
void space_torque(int64_t bodies, int64_t parts, int64_t robots, const Space<S>& chain, const Array<S>* given,
                  S* torque, int64_t begin, int64_t end) {
  typedef typename K::vec V;
  std::vector<V> forces(3 * bodies), moments(3 * bodies);
  for_groups<K>(parts, robots, begin, end, [&](Group<K> of) {
    V turning[3] = {}, turned[3] = {}, place[3];
    for (int i = 0; i < 3; i++) place[i] = -of.real(chain.gravity, i);
    for (int64_t body = 0; body < bodies; body++) {
      for (int64_t k = first_joint(body); k <= last_joint(body); k++) {
        V rate = of.real(given[0], k), change = of.real(given[1], k), axis[3], step[3];
        for (int i = 0; i < 3; i++) axis[i] = of.real(chain.axes, 3 * k + i), step[i] = axis[i] * rate;
        add_product(turned, turning, step);
        for (int i = 0; i < 3; i++) turning[i] += step[i], turned[i] += axis[i] * change;
      }
      V frame[3][3], across[3] = {}, bend[3] = {};
      for (int i = 0; i < 9; i++) frame[i / 3][i % 3] = of.real(chain.frames, 9 * body + i);
      add_product(across, turning, frame[0]);
      add_product(bend, turned, frame[0]);
      add_product(bend, turning, across);
      V m = of.real(chain.mass, body), c = of.real(chain.centre, body), l = of.real(chain.length, body);
      V about[3], spin[3], own[3] = {}, local[3];
      for (int i = 0; i < 3; i++) {
        about[i] = of.real(chain.inertia, 3 * body + i);
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
      V c = of.real(chain.centre, body), l = of.real(chain.length, body), e[3], load[3];
      for (int i = 0; i < 3; i++) {
        e[i] = of.real(chain.frames, 9 * body + i), load[i] = c * forces[3 * body + i] + l * beyond[i];
        moment[i] += moments[3 * body + i], beyond[i] += forces[3 * body + i];
      }
      add_product(moment, e, load);
      for (int64_t k = last_joint(body); k >= first_joint(body); k--) {
        V sum{};
        for (int i = 0; i < 3; i++) sum += of.real(chain.axes, 3 * k + i) * moment[i];
        of.store(torque, k, sum);
      }
    }
  });
}

// ---- both -----------------------------------------------------------------------------------------------------------

// The accelerations of the joints; given are q, velocity, force, stiffness and damping of the joints, in this order.
// Each vector of robots is computed to its end, so that intermediate numbers stay in the cache.
template <typename K, int64_t KEPT, auto TORQUE, auto FACTOR, auto SOLVE, typename P, typename S = typename K::scalar>
void acceleration(int64_t bodies, int64_t joints, int64_t robots, const P& chain, const Array<S>* given, S* found,
                  int64_t begin, int64_t end) {
  typedef typename K::vec V;
  const int64_t lanes = Group<K>::lanes;
  const S zero = 0;
  const Array<S> nothing = {&zero, 0, 0, 0};
  std::vector<S> torque(joints * lanes), kept(joints * KEPT * lanes);
  for_groups<K>(1, robots, begin, end, [&](Group<K> of) {
    const P here = chain.from(of.first);
    const Array<S> motion[] = {given[1].from(of.first), nothing};
    const Array<S> solved[] = {{kept.data(), of.count, 0, 1}, {torque.data(), of.count, 0, 1}};
    const Group<K> own = {1, of.count, 0, 0, of.count};
    TORQUE(bodies, 1, of.count, here, motion, torque.data(), 0, 1);
    for (int64_t k = 0; k < joints; k++) {
      V springs = of.real(given[3], k) * of.real(given[0], k) + of.real(given[4], k) * of.real(given[1], k);
      own.store(torque.data(), k, of.real(given[2], k) - own.real(solved[1], k) - springs);
    }
    FACTOR(bodies, 1, of.count, here, &nothing, kept.data(), 0, 1);
    SOLVE(bodies, 1, of.count, here, solved, torque.data(), 0, 1);  // reads all torques before it writes
    for (int64_t k = 0; k < joints; k++) of.store(found, k, own.real(solved[1], k));
  });
}

template <typename K, typename S = typename K::scalar>
void plane_acceleration(int64_t bodies, int64_t, int64_t robots, const Plane<S>& chain, const Array<S>* given, S* found,
                        int64_t begin, int64_t end) {
  acceleration<K, PLANE, plane_torque<K>, plane_factor<K>, plane_solve<K>>(bodies, bodies, robots, chain, given, found,
                                                                           begin, end);
}

template <typename K, typename S = typename K::scalar>
void space_acceleration(int64_t bodies, int64_t, int64_t robots, const Space<S>& chain, const Array<S>* given, S* found,
                        int64_t begin, int64_t end) {
  acceleration<K, SPACE, space_torque<K>, space_factor<K>, space_solve<K>>(
      bodies, last_joint(bodies - 1) + 1, robots, chain, given, found, begin, end);
}

}  // namespace

#define EXPORTED(FUNCTION, NAME, POSTURE, NUMBER)                                                                     \
  extern "C" void FUNCTION##_##NAME(int64_t bodies, int64_t parts, int64_t robots, const void* chain,                 \
                                    const void* given, double* found, int64_t begin, int64_t end) {                   \
    FUNCTION<NUMBER<double>>(bodies, parts, robots, *static_cast<const POSTURE<double>*>(chain),                      \
                             static_cast<const Array<double>*>(given), found, begin, end);                            \
  }

extern "C" void space_turn_float64(int64_t bodies, int64_t parts, int64_t robots, const void* given, double* found,
                                   int64_t begin, int64_t end) {
  space_turn<Real<double>>(bodies, parts, robots, static_cast<const Array<double>*>(given), found, begin, end);
}

EXPORTED(plane_acceleration, float64, Plane, Real)
EXPORTED(plane_torque, float64, Plane, Real)
EXPORTED(plane_factor, float64, Plane, Real)
EXPORTED(plane_factor, complex128, Plane, Twofold)
EXPORTED(plane_solve, float64, Plane, Real)
EXPORTED(plane_solve, complex128, Plane, Twofold)
EXPORTED(space_acceleration, float64, Space, Real)
EXPORTED(space_torque, float64, Space, Real)
EXPORTED(space_factor, float64, Space, Real)
EXPORTED(space_factor, complex128, Space, Twofold)
EXPORTED(space_solve, float64, Space, Real)
EXPORTED(space_solve, complex128, Space, Twofold)
