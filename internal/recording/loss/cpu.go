package loss

import (
	"encoding/json"
	"fmt"
	"math"
)

// CPU is the number of a CPU and 1, so that 0 is none. In JSON it is the number.
type CPU uint32

// CPUOf returns the CPU with a number.
func CPUOf(number int) CPU { return CPU(number + 1) }

// MarshalJSON writes the number.
func (c CPU) MarshalJSON() ([]byte, error) {
	if c == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(uint32(c) - 1)
}

// UnmarshalJSON reads a number, or null for none.
func (c *CPU) UnmarshalJSON(b []byte) error {
	var number *uint32
	if err := json.Unmarshal(b, &number); err != nil {
		return fmt.Errorf("the number of a CPU: %w", err)
	}
	switch {
	case number == nil:
		*c = 0
	case *number == math.MaxUint32:
		return fmt.Errorf("%d is no number of a CPU", *number)
	default:
		*c = CPU(*number + 1)
	}
	return nil
}

// String names the CPU as Loss.Where does: "cpu 3"; "" for none.
func (c CPU) String() string {
	if c == 0 {
		return ""
	}
	return fmt.Sprintf("cpu %d", uint32(c)-1)
}
