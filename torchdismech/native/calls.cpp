// Calls of compiled functions, one after the other: a recorded step is one call from Python instead of many.

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
    const Call& one = calls[k];
    *result = with(one.count, std::make_index_sequence<MOST + 1>())(one.function, one.arguments);
    if (one.expected >= 0 && *result != one.expected) return k;
  }
  return count;
}

void copies_in_turn(int64_t count, const Copy* copies) {
  for (int64_t k = 0; k < count; ++k)
    if (copies[k].source) std::memcpy(copies[k].target, copies[k].source, copies[k].bytes);
}
}
