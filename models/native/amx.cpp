#include "pass.cpp"
