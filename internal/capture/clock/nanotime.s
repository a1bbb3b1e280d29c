// This file lets clock.go declare a function without a body.
