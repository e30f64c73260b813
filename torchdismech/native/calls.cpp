// Makes calls of compiled functions one after the other, so that a recorded step is one call from Python instead of
// many, and so are many steps, as long as none of them needs Python.

#include <cstdint>
#include <cstring>
#include <utility>

namespace {

// A call of a function whose arguments are integers and addresses. `expected` is the value that it has to return; -1 if
// its return value does not matter.
struct Call {
  void* function;
  int64_t count;
  const int64_t* arguments;
  int64_t expected;
};

template <std::size_t... K>
int64_t call(void* function, const int64_t* given, std::index_sequence<K...>) {
  return reinterpret_cast<int64_t (*)(decltype(K, int64_t())...)>(function)(given[K]...);
}

template <std::size_t COUNT>
int64_t call_with(void* function, const int64_t* given) {
  return call(function, given, std::make_index_sequence<COUNT>());
}

// Bytes to be copied; nothing is copied if the source is null.
struct Copy {
  const void* source;
  void* target;
  int64_t bytes;
};

// The largest number of arguments that a function may have.
constexpr std::size_t MOST = 26;
typedef int64_t (*With)(void*, const int64_t*);

template <std::size_t... K>
With with(std::size_t count, std::index_sequence<K...>) {
  static const With all[] = {call_with<K>...};
  return all[count];
}

int64_t made(const Call& one) {
  return with(one.count, std::make_index_sequence<MOST + 1>())(one.function, one.arguments);
}

struct Calls {
  int64_t count;
  const Call* calls;
};

// Why steps ended, and the function that returned an unexpected value.
struct End {
  int64_t why;
  void* function;
};

// Make calls in order, up to one that returns an unexpected value; return whether there was none.
bool all_made(const Calls& some, End* end) {
  for (int64_t k = 0; k < some.count; ++k) {
    const int64_t returned = made(some.calls[k]);
    if (some.calls[k].expected < 0 || returned == some.calls[k].expected) continue;
    end->function = some.calls[k].function;
    return false;
  }
  return true;
}

// A place in memory, and the number that is written there before each step.
struct Varying {
  int64_t* place;
  const int64_t* values;
};

// Bytes that are all zero after a successful step.
struct Zeros {
  const char* begin;
  int64_t bytes;
};

bool holds(const Zeros& zeros) {
  for (int64_t k = 0; k < zeros.bytes; ++k)
    if (zeros.begin[k]) return false;
  return true;
}

// The parts of a step, as `StepLoop` in step_loop.py lays them out: instructions before it, its set-up, its rounds
// (none if `round` is empty), its end, instructions after it, and copies of its state to where the next step begins. A
// round writes the flags `RoundFlags` of integrate/recorded/rounds.py. `accept_or_shorten`, which follows a round in
// which the step of some row was no good one, writes `ShorteningFlags`; it may be empty. Steps on obstacles that are
// constraints have `contact_flags`, which is null for others: there `last_round` is a round with closed contacts, and
// `round` one without. `rounds_before` is the number of rounds that the last step took.
struct Steps {
  Calls before, set_up, round, last_round, accept_or_shorten, end, after, hand_on;
  const bool *flags, *last_flags, *shortening_flags, *contact_flags;
  int64_t* rounds_before;
  int64_t checks;
  const Zeros* checked;
  int64_t varying;
  const Varying* varied;
};
// The order is that of `RoundFlags`, and of `ShorteningFlags`, which have LEFT in place of UNCONVERGED (and BAD means
// there that some row tries a part of its step next).
enum Flag { BAD, MORE, UNCONVERGED, FAR, LOST, LEFT = UNCONVERGED };

// Why a loop ended: the order is that of `StopReason` in step_loop.py.
enum StopReason { ALL_TAKEN, BAD_STEP, CHECK, UNEXPECTED, LOST_ROWS, SHORTENED };

// Take rounds of Newton's method until no row has to be moved any more; see `RecordedRounds` in
// integrate/recorded/rounds.py, which does the same.
StopReason searched(const Steps& steps, End* end) {
  bool with_matrix = true, more = true, lost = false;
  int64_t rounds = 0;
  while (more) {
    if (!all_made(with_matrix ? steps.round : steps.last_round, end)) return UNEXPECTED;
    const bool* flags = with_matrix ? steps.flags : steps.last_flags;
    if (flags[BAD] && with_matrix) {
      if (!steps.accept_or_shorten.count) return BAD_STEP;
      if (!all_made(steps.accept_or_shorten, end)) return UNEXPECTED;
      flags = steps.shortening_flags;
      if (flags[BAD] || flags[LEFT]) return SHORTENED;
    }
    const bool repeated = !with_matrix && (flags[BAD] || flags[UNCONVERGED]);  // it was not the last after all
    more = flags[MORE] || repeated;
    lost = flags[LOST];
    rounds += !repeated;
    with_matrix = flags[FAR] || !with_matrix || rounds + 1 < *steps.rounds_before;
  }
  *steps.rounds_before = rounds;
  return lost ? LOST_ROWS : ALL_TAKEN;
}

// Take rounds on obstacles until no row has to be moved any more. The flags, which the set-up and each round write, are
// those of integrate/recorded/contact_step.py: whether some row goes on, whether some row is lost, and whether some
// contact is closed.
StopReason searched_on_obstacles(const Steps& steps, End* end) {
  const bool* flags = steps.contact_flags;
  while (flags[0])
    if (!all_made(flags[2] ? steps.last_round : steps.round, end)) return UNEXPECTED;
  return flags[1] ? LOST_ROWS : ALL_TAKEN;
}

// Take a step; of a step that is not successful no state is stored or handed on.
StopReason taken(const Steps& steps, int64_t number, End* end) {
  for (int64_t k = 0; k < steps.varying; ++k) *steps.varied[k].place = steps.varied[k].values[number];
  if (!all_made(steps.before, end) || !all_made(steps.set_up, end)) return UNEXPECTED;
  if (steps.round.count)
    if (const StopReason why = steps.contact_flags ? searched_on_obstacles(steps, end) : searched(steps, end))
      return why;
  if (!all_made(steps.end, end)) return UNEXPECTED;
  for (int64_t k = 0; k < steps.checks; ++k)
    if (!holds(steps.checked[k])) return CHECK;
  return all_made(steps.after, end) && all_made(steps.hand_on, end) ? ALL_TAKEN : UNEXPECTED;
}

}  // namespace

extern "C" {
int64_t most_arguments() { return MOST; }

// Whether all flags are true.
int64_t all_hold(int64_t count, const bool* flags) {
  for (int64_t k = 0; k < count; ++k)
    if (!flags[k]) return 0;
  return 1;
}

// Make the calls in order, from index `first` on, up to one that returns an unexpected value. Returns its index, and
// its value in `result`; `count` if there is none.
int64_t calls_in_turn(int64_t count, const Call* calls, int64_t* result, int64_t first) {
  for (int64_t k = first; k < count; ++k) {
    *result = made(calls[k]);
    if (calls[k].expected >= 0 && *result != calls[k].expected) return k;
  }
  return count;
}

// Take the steps from index `first` up to `count`, as long as each is successful. Returns the index of the one that was
// not, and the reason in `end`; `count` if there is none.
int64_t steps_in_turn(const Steps* steps, int64_t first, int64_t count, End* end) {
  *end = {ALL_TAKEN, nullptr};
  for (int64_t k = first; k < count; ++k)
    if ((end->why = taken(*steps, k, end)) != ALL_TAKEN) return k;
  return count;
}

void copies_in_turn(int64_t count, const Copy* copies) {
  for (int64_t k = 0; k < count; ++k)
    if (copies[k].source) std::memcpy(copies[k].target, copies[k].source, copies[k].bytes);
}
}
