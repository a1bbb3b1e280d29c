package request

import "testing"

// TestCallersOfTLS: only programs that are known to stay on one stack within OpenSSL are probed.
func TestCallersOfTLS(t *testing.T) {
	for base, want := range map[string]bool{
		"_ssl.cpython-311-x86_64-linux-gnu.so": true, "python3.12": true, "nginx": true, "node": true,
		"libssl.so.3": false, "server": false, "nginx-debug": false, "photon": false,
	} {
		if callsTLS(base) != want {
			t.Errorf("%s may be probed: %t", base, !want)
		}
	}
}
