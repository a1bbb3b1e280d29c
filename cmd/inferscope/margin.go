package main

import "github.com/spf13/pflag"

// marginFlag adds the flag for the clock error above which a report warns.
func (f *reportFlags) marginFlag(flags *pflag.FlagSet) {
	flags.StringVar(&f.margin, "sync-error-margin-us", "", "clock error in microseconds above which the report warns, also INFERSCOPE_SYNC_ERROR_MARGIN_US (default 1000)")
}

// typed returns the settings that flags give, by key.
func (f *reportFlags) typed() map[string]string {
	if f.margin == "" {
		return nil
	}
	return map[string]string{"sync_error_margin_us": f.margin}
}
