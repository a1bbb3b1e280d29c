// Command release makes what a release has beside packages, out of the programs, without a container engine:
//
//	release image -out DIR -version V -time UNIX linux/amd64=DIR linux/arm64=DIR
//		an OCI layout of one image for both
//	release sbom -version V -time UNIX PROGRAM
//		its modules, as CycloneDX, on stdout
//
// The same input makes the same bytes.
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "image":
			return image(args[1:])
		case "sbom":
			return sbom(args[1:], os.Stdout)
		}
	}
	return fmt.Errorf("usage: release image|sbom")
}
