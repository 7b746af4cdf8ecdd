package rlock

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// blocks returns the code blocks of the README.
func blocks(t *testing.T) (blocks []string) {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(readme), "```go\n")[1:] {
		block, _, _ := strings.Cut(part, "```\n")
		blocks = append(blocks, block)
	}
	return blocks
}

// The first block of the README is a program, which is run.
func TestReadme(t *testing.T) {
	s := start(t)
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(blocks(t)[0], "6380", fmt.Sprint(s.port))), 0o644); err != nil {
		t.Fatal(err)
	}
	said, err := exec.Command("go", "run", file).CombinedOutput()
	if err != nil || !strings.Contains(string(said), "it is mine, with the token 1") {
		t.Fatal(err, string(said))
	}
}

var declared = regexp.MustCompile(`(?m)^(\w+)(?:, (\w+))? :=`)

// The other blocks of the README compile in the handler of an HTTP server, within the program of the first block.
func TestTheSnippetsOfTheReadmeCompileInAHandler(t *testing.T) {
	all, count := blocks(t), 0
	before, after, _ := strings.Cut(all[0], "import (\n")
	program := before + "import (\n\"net/http\"\n\"os/signal\"\n\"syscall\"\n" + after
	program += "\nvar _, _ = signal.Ignore, syscall.SIGTERM\n"
	for at, block := range all[1:] {
		switch {
		case strings.Contains(block, "rlockotel."): // another module, whose test compiles it
			continue
		case strings.HasPrefix(block, "type "):
			program += block
		default:
			program += fmt.Sprintf("\nfunc handler%d(locker *rlock.Locker) http.HandlerFunc {\n"+
				"return func(w http.ResponseWriter, r *http.Request) {\nctx := r.Context()\n%s", at, block)
			for _, found := range declared.FindAllStringSubmatch(block, -1) {
				program += "_ = " + found[1] + "\n"
				if found[2] != "" {
					program += "_ = " + found[2] + "\n"
				}
			}
			program += "}\n}\n"
		}
		count++
	}
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command("go", "vet", file).CombinedOutput(); err != nil || count < 6 {
		t.Fatal(count, err, string(said))
	}
}
