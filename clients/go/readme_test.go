package rlock

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The first block of the README is a program, and runs.
func TestReadme(t *testing.T) {
	s := start(t)
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(readme), "```go\n")
	block, _, _ = strings.Cut(block, "```\n")
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(block, "6380", fmt.Sprint(s.port))), 0o644); err != nil {
		t.Fatal(err)
	}
	said, err := exec.Command("go", "run", file).CombinedOutput()
	if err != nil || !strings.Contains(string(said), "it is mine, with the token 1") {
		t.Fatal(err, string(said))
	}
}
