// A well-behaved stub for every export nobody implements: counted in the truth, answers "not supported".
// The symbols are weak: defining impl_NAME elsewhere is all it takes to implement NAME.
#include "sim.h"

static CUresult stub(uint32_t fn) {
  ENTER_ID(fn);
  LEAVE(sim.initialized ? E_NOT_SUPPORTED : E_NOT_INITIALIZED);
}

#define X(since, name, cbid)                         \
  __attribute__((weak)) CUresult impl_##name(void);  \
  __attribute__((weak)) CUresult impl_##name(void) { return stub(FN_##name); }
#define A(since, name, cbid, target)
#include "exports.h"
#undef X
#undef A

#define X(since, name, cbid) #name,
#define A(since, name, cbid, target)
const char *const fn_names[FN_COUNT] = {"",
#include "exports.h"
};
#undef X
#undef A

#define X(since, name, cbid) cbid,
#define A(since, name, cbid, target)
const uint32_t fn_cbids[FN_COUNT] = {0,
#include "exports.h"
};
