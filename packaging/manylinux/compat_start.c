// Before glibc 2.34 a program's own constructors were run by a function that the linker put into each program, which today's start files
// no longer have: linked for an older glibc, a program would start without them. This gives __libc_start_main that function. A newer
// glibc calls it too where a program names the old version, and then runs nothing itself.
#include <stddef.h>

typedef int main_function(int, char**, char**);
typedef int init_function(int, char**, char**);

extern int old_start(main_function*, int, char**, init_function*, void (*)(void), void (*)(void), void*);
#if defined(__aarch64__)
__asm__(".symver old_start, __libc_start_main@GLIBC_2.17");
#else
__asm__(".symver old_start, __libc_start_main@GLIBC_2.2.5");
#endif

extern void _init(void);
extern init_function* const __init_array_start[] __attribute__((visibility("hidden")));
extern init_function* const __init_array_end[] __attribute__((visibility("hidden")));

static int run_constructors(int count, char** arguments, char** environment) {
  _init();
  for (init_function* const* each = __init_array_start; each != __init_array_end; ++each) (void)(*each)(count, arguments, environment);
  return 0;
}

int __libc_start_main(main_function* main, int count, char** arguments, init_function* init, void (*fini)(void), void (*at_exit)(void),
                      void* stack_end) {
  return old_start(main, count, arguments, init != NULL ? init : run_constructors, fini, at_exit, stack_end);
}
