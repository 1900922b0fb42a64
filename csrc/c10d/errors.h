// errors.h - libsolo's codes as torch's exceptions.
#pragma once

#include <exception>
#include <string>

namespace solo_c10d
{

// What a failed call throws: NotImplementedError for what has no meaning, RuntimeError for wrong
// arguments, DistNetworkError (TimeoutError for deadlines) and DistBackendError for the rest.
std::exception_ptr error_of(int rc, const std::string &text);
[[noreturn]] void throw_error(int rc, const std::string &text);
void check(int rc); // throws with solo_error_text

} // namespace solo_c10d
