package machine

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// The traces that the Rust machine wrote in the simulation: this machine must give the same outputs.
func TestTraces(t *testing.T) {
	files := []string{"../../../traces/golden.txt"}
	if more := os.Getenv("RLOCK_TRACES"); more != "" {
		found, err := filepath.Glob(more)
		if err != nil || len(found) == 0 {
			t.Fatal("RLOCK_TRACES names no file: ", more, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		opened, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer opened.Close()
		count := replay(t, bufio.NewScanner(opened))
		if count == 0 {
			t.Fatal("no traces in ", file)
		}
		t.Log(count, " traces of ", file)
	}
}

type stepper interface {
	Step(now Ms, in Input) []Output
}

func replay(t *testing.T, lines *bufio.Scanner) (count int) {
	lines.Buffer(nil, 1<<20)
	var title string
	var machine stepper
	for lines.Scan() {
		text := lines.Text()
		words := strings.Fields(text)
		switch {
		case len(words) == 0 || words[0] == "#" || words[0] == "end":
			continue
		case words[0] == "trace":
			count, title = count+1, text
			machine = begun(words)
			continue
		}
		now, said, told := number(words[0]), strings.SplitN(text, " -> ", 2)[0], []string(nil)
		input := words[1 : strings.Count(said, " ")+1]
		for _, out := range machine.Step(now, read(input)) {
			told = append(told, out.text())
		}
		answer := strings.Join(told, "; ")
		if answer == "" {
			answer = "-"
		}
		if answer = said + " -> " + answer; answer != text {
			t.Fatalf("%s\nexpected: %s\nanswered: %s", title, text, answer)
		}
	}
	return count
}

func begun(words []string) stepper {
	value := map[string]Ms{}
	for _, word := range words[3:] {
		name, text, _ := strings.Cut(word, "=")
		value[name] = number(text)
	}
	is := func(name string) bool { return value[name] == 1 }
	switch words[2] {
	case "attempt":
		return NewAttempt(Ask{
			Wait: value["wait"], Patience: value["patience"], Outage: value["outage"], Lease: value["lease"],
			Depth: int(value["depth"]), Below: value["below"], Hears: is("hears"), Session: is("session"), HasAcks: is("acks"),
		})
	case "release":
		return NewRelease(Level{
			Patience: value["patience"], Lease: value["lease"], Depth: int(value["depth"]), Token: value["token"],
			Deadline: value["deadline"], Lingers: is("lingers"),
		})
	case "hold":
		return NewHold(Kept{
			Token: value["token"], Lease: value["lease"], Sent: value["sent"], Margin: value["margin"],
			HasAcks: is("acks"), Renews: is("renews"),
		})
	}
	panic(words[2])
}

func number(text string) Ms {
	if text == "forever" {
		return Forever
	}
	number, _ := strconv.ParseInt(text, 10, 64)
	return number
}

var endings = map[string]Ending{"token": Token, "nil": Nil, "waiting": Waiting, "refused": Refused, "unsent": Unsent, "broken": Broken, "silent": Silent}

var events = map[string]Event{
	"call": Call, "opened": Opened, "listening": Listening, "lost": Unheard, "time": Time,
	"taken": Taken, "cancel": Cancel, "close": Close, "ended": Untied, "seat": Seat, "releasing": Releasing,
	"released": Released, "gone": Gone, "extend": Extend,
}

func read(words []string) Input {
	in := Input{Event: Ended}
	switch words[0] {
	case "own":
		in.Event, words = Own, words[1:]
	case "message":
		in.Event, words = Message, words[1:]
	}
	last := words[len(words)-1]
	if event, is := events[words[0]]; is {
		return Input{Event: event, Yes: len(words) > 1 && words[1] == "yes", N: number(last)}
	}
	in.Outcome.Ending = endings[words[0]]
	switch in.Outcome.Ending {
	case Token:
		in.Outcome.Token = number(last)
	case Refused:
		in.Outcome.Code = last
	}
	return in
}

func ms(some Ms) string {
	if some == Forever {
		return "forever"
	}
	return fmt.Sprint(some)
}

var tells = map[Tell]string{
	NotAcquired: "nil", IsReleased: "released", Lost: "lost", Unavailable: "unavailable", NoReplicas: "noreplicas",
	Cancelled: "cancelled", Closed: "closed",
}

var acts = map[Act]string{
	Open: "open", AskAlone: "own acquire", Await: "await", Listen: "listen",
	Wait: "wait", Sleep: "sleep", TakeSeat: "seat", Keep: "keep", Drop: "drop", Undo: "undo", Free: "free",
	Doubt: "doubt", Tied: "tied", Leave: "leave", Done: "done",
}

var requests = map[Request]string{Acquire: "acquire", CancelWait: "cancel", Info: "info"}

func (out Output) text() string {
	by := " by=" + ms(out.By)
	switch out.Act {
	case Say:
		switch out.Tell {
		case Granted:
			text := fmt.Sprintf("tell granted %d sent=%d", out.Token, out.Sent)
			if out.Lingers {
				text += " lingers=1"
			}
			return text
		case IsRefused:
			return "tell refused " + out.Code
		}
		return "tell " + tells[out.Tell]
	case Send:
		switch out.Request {
		case Renew:
			return fmt.Sprintf("send renew %d%s", out.Token, by)
		case ReleaseDown:
			return fmt.Sprintf("send release %d %d%s", out.Token, out.Depth, by)
		}
		return "send " + requests[out.Request] + out.block() + by
	case AskAlone:
		text := acts[out.Act] + out.block()
		if out.Session {
			text += " session"
		}
		if out.Depth > 0 {
			text += fmt.Sprint(" depth=", out.Depth)
		}
		return text + by
	case TakeSeat, Keep, Drop, Undo, Free, Doubt, Tied, Leave, Done:
		return acts[out.Act]
	}
	return acts[out.Act] + by
}

func (out Output) block() string {
	if out.Blocks {
		return fmt.Sprint(" block=", out.Block)
	}
	return ""
}
