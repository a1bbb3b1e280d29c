// Program true ends at once: whether a container runs at all.
package main

func main() {}
