// How far two words are apart, to find what somebody meant to write.
#pragma once

#include <cstddef>
#include <string_view>

namespace penstock {

// Insertions, deletions, replacements and swaps of neighbours from one to the other. Takes the product of both lengths.
size_t letters_apart(std::string_view a, std::string_view b);

}  // namespace penstock
