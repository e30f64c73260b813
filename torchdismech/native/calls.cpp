// Calls of compiled functions, one after the other: a recorded step is one call from Python instead of many, and so are
// many steps, as long as nothing in them is for Python.

#include <cstdint>
#include <cstring>
#include <utility>

namespace {

// A call of a function whose arguments are whole numbers and addresses. `expected` is what it has to return; -1 where it
// returns nothing that is looked at.
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

// Numbers to be copied; none where there is no source.
struct Copy {
  const void* source;
  void* target;
  int64_t bytes;
};

// The most arguments that a function may have.
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

// Why steps ended, and the function that did not return what is expected.
struct End {
  int64_t why;
  void* function;
};

// Make calls in turn; whether each returned what is expected.
bool all_made(const Calls& some, End* end) {
  for (int64_t k = 0; k < some.count; ++k) {
    const int64_t returned = made(some.calls[k]);
    if (some.calls[k].expected < 0 || returned == some.calls[k].expected) continue;
    end->function = some.calls[k].function;
    return false;
  }
  return true;
}

// A place in memory, and what is to stand there in each step.
struct Varying {
  int64_t* place;
  const int64_t* values;
};

// Bytes that are all zero after a step that went well.
struct Zeros {
  const char* begin;
  int64_t bytes;
};

bool holds(const Zeros& zeros) {
  for (int64_t k = 0; k < zeros.bytes; ++k)
    if (zeros.begin[k]) return false;
  return true;
}

// The parts of a step, as `StepLoop` in step_loop.py lays them out: what is done before it, its set-up, its rounds (none
// where `round` is empty), its end, what is done after it, and how it hands on to the next. A round writes the flags that
// `solve.rounds.tried_steps` returns; `sort_out`, what is done after a round with steps that raise the norm of some row,
// writes those of `sorted_out`, and may be empty.
struct Steps {
  Calls before, set_up, round, last_round, sort_out, end, after, hand_on;
  const bool *flags, *last_flags, *sorted_flags;
  int64_t checks;
  const Zeros* checked;
  int64_t varying;
  const Varying* varied;
};
// The order is that of the flags of `tried_steps`, and of `sorted_out`, which say LEFT in place of UNCONVERGED.
enum Flag { BAD, MORE, UNCONVERGED, FAR, LOST, LEFT = UNCONVERGED };

// Why a loop ended: the order is that of `StopReason` in step_loop.py.
enum StopReason { ALL_TAKEN, UNSORTED, CHECK, UNEXPECTED, LOST_ROWS, SHORTENED };

// Take rounds until no row is to be moved.
StopReason searched(const Steps& steps, End* end) {
  bool with_matrix = true, more = true, lost = false;
  while (more) {
    if (!all_made(with_matrix ? steps.round : steps.last_round, end)) return UNEXPECTED;
    const bool* flags = with_matrix ? steps.flags : steps.last_flags;
    if (flags[BAD] && with_matrix) {
      if (!steps.sort_out.count) return UNSORTED;
      if (!all_made(steps.sort_out, end)) return UNEXPECTED;
      flags = steps.sorted_flags;
      if (flags[BAD] || flags[LEFT]) return SHORTENED;
    }
    more = flags[MORE] || (!with_matrix && (flags[BAD] || flags[UNCONVERGED]));
    lost = flags[LOST];
    with_matrix = flags[FAR] || !with_matrix;  // a round that was to be the last and was not is taken once more
  }
  return lost ? LOST_ROWS : ALL_TAKEN;
}

// Take a step; nothing is done with one that did not go well.
StopReason taken(const Steps& steps, int64_t number, End* end) {
  for (int64_t k = 0; k < steps.varying; ++k) *steps.varied[k].place = steps.varied[k].values[number];
  if (!all_made(steps.before, end) || !all_made(steps.set_up, end)) return UNEXPECTED;
  if (steps.round.count)
    if (const StopReason why = searched(steps, end)) return why;
  if (!all_made(steps.end, end)) return UNEXPECTED;
  for (int64_t k = 0; k < steps.checks; ++k)
    if (!holds(steps.checked[k])) return CHECK;
  return all_made(steps.after, end) && all_made(steps.hand_on, end) ? ALL_TAKEN : UNEXPECTED;
}

}  // namespace

extern "C" {
int64_t most_arguments() { return MOST; }

// Whether all of some flags hold.
int64_t all_hold(int64_t count, const bool* flags) {
  for (int64_t k = 0; k < count; ++k)
    if (!flags[k]) return 0;
  return 1;
}

// Make the calls in turn, from number `first` on. Returns the number of one that did not return what is expected, and
// what it returned in `result`; `count` where there is none.
int64_t calls_in_turn(int64_t count, const Call* calls, int64_t* result, int64_t first) {
  for (int64_t k = first; k < count; ++k) {
    *result = made(calls[k]);
    if (calls[k].expected >= 0 && *result != calls[k].expected) return k;
  }
  return count;
}

// Take the steps from number `first` up to `count`, as long as each goes well. Returns the number of the one that did
// not, and why in `end`; `count` where there is none.
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
