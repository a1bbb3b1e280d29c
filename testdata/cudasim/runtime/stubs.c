// Stubs of everything nobody implements, weak so that defining rt_NAME elsewhere implements NAME.
#include "rt.h"

static cudaError_t stub(uint32_t fn) {
  RENTER_ID(fn);
  RLEAVE(801);
}

#define X(name)                                       \
  __attribute__((weak)) cudaError_t rt_##name(void);  \
  __attribute__((weak)) cudaError_t rt_##name(void) { return stub(RFN_##name); }
#include "exports.h"
#undef X

extern const char *const rt_names[RFN_COUNT];
#define X(name) #name,
const char *const rt_names[RFN_COUNT] = {"",
#include "exports.h"
};
