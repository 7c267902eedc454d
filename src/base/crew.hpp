// Threads that run many short steps, such as opening and reading small files. Their number grows while the steps mostly wait for the kernel
// (a cold disk, a network file system) and more threads finish more of them: one thread per core is best for cached files, a hundred for
// files on a server.
#pragma once

#include <functional>

namespace penstock {

// Returns 128, or fewer if the limit on open files is low. descriptors: how many each thread may open.
unsigned most_crew_threads(unsigned descriptors = 4) noexcept;

// Calls step(is_caller) on the calling thread and others, each until a call returns false, and waits for them. If threads cannot be
// started, the others do the work. step: must not throw; is_caller is true on the calling thread. most: the maximum number of threads.
void run_in_crew(unsigned most, const std::function<bool(bool is_caller)>& step);

}  // namespace penstock
