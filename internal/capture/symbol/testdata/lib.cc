// A template whose name nobody wants to read whole.
template <class A, class B> struct Pair { A a; B b; };
namespace at { namespace native { namespace {
template <int N, class F> __attribute__((noinline)) int elementwise(F f) { return f.a + N; }
}}}
extern "C" int use(int x) { return at::native::elementwise<4>(Pair<int, Pair<long, Pair<char *, int> > >{x, {}}); }
