// Vectors of numbers, as wide as one register of the machine, because wider ones would spill to memory.

#pragma once

namespace {

#if defined(VECTOR_BYTES)  // given on the compiler's command line
#elif defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

template <typename T> struct Lanes;
template <> struct Lanes<double> { typedef double vec __attribute__((vector_size(VECTOR_BYTES))); };
template <> struct Lanes<float> { typedef float vec __attribute__((vector_size(VECTOR_BYTES))); };
template <typename T> using Vec = typename Lanes<T>::vec;

// The vector V at any address, which stays in a register while it is used: GCC 12 otherwise reads it from memory again
// for each product.
template <typename V> inline V read_once(const void* from) {
  typedef V Anywhere __attribute__((aligned(4), may_alias));
  return *static_cast<const volatile Anywhere*>(from);
}

}  // namespace
