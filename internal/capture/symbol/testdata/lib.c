/* Functions of every kind that a symbol table can name or fail to name. */
#define NOINLINE __attribute__((noinline))
static NOINLINE int hidden_helper(int x) { return x * 3 + 1; }
NOINLINE int exported_one(int x) { return hidden_helper(x) + hidden_helper(x + 1); }
NOINLINE int exported_two(int x) { return exported_one(x) - 7; }
int nice_name(int x) __attribute__((alias("exported_two")));
int __ugly_alias_of_it(int x) __attribute__((alias("exported_two")));
__asm__(".text\n.globl no_size\n.p2align 4\nno_size:\n\tnop\n\tnop\n\tret\n"
	".globl no_size_next\n.p2align 4\nno_size_next:\n\tnop\n\tret\n");
