// Verifies receipts with Go's implementation of notes and trees, which shares no code with the gateway's: every file of
// a folder. Prints how many are valid, how many are not, and why the first one is not.
//
//	receipts -log VERIFIER_KEY -witness VERIFIER_KEY FOLDER
package main

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

func verify(content string, log note.Verifier, witness string) error {
	head, signed, found := strings.Cut(content, "\n\n")
	lines := strings.Split(head, "\n")
	if !found || len(lines) < 3 || lines[0] != "c2sp.org/tlog-proof@v1" {
		return errors.New("this is no receipt")
	}
	entry, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(lines[1], "extra "))
	if err != nil {
		return err
	}
	index, err := strconv.ParseInt(strings.TrimPrefix(lines[2], "index "), 10, 64)
	if err != nil {
		return err
	}
	var proof tlog.RecordProof
	for _, line := range lines[3:] {
		hash, err := tlog.ParseHash(line)
		if err != nil {
			return err
		}
		proof = append(proof, hash)
	}
	opened, err := note.Open([]byte(signed), note.VerifierList(log))
	if err != nil {
		return err
	}
	parts := strings.Split(opened.Text, "\n")
	if len(parts) < 4 || parts[0] != log.Name() {
		return errors.New("the checkpoint is of another log")
	}
	size, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return err
	}
	root, err := tlog.ParseHash(parts[2])
	if err != nil {
		return err
	}
	if err := verifyCosignature(opened, witness); err != nil {
		return err
	}
	return tlog.CheckRecord(proof, size, root, index, tlog.RecordHash(entry))
}

// Go's notes know no cosignatures: the time is signed with the text.
func verifyCosignature(opened *note.Note, witness string) error {
	name, rest, _ := strings.Cut(witness, "+")
	_, encoded, _ := strings.Cut(rest, "+")
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(key) != 1+ed25519.PublicKeySize || key[0] != 4 {
		return errors.New("this is no key of a witness")
	}
	for _, each := range opened.UnverifiedSigs {
		signature, err := base64.StdEncoding.DecodeString(each.Base64)
		if err != nil || each.Name != name || len(signature) != 4+8+ed25519.SignatureSize {
			continue
		}
		time := binary.BigEndian.Uint64(signature[4:12])
		message := fmt.Sprintf("cosignature/v1\ntime %d\n%s", time, opened.Text)
		if ed25519.Verify(key[1:], []byte(message), signature[12:]) {
			return nil
		}
	}
	return errors.New("the witness did not cosign")
}

func main() {
	logKey := flag.String("log", "", "")
	witness := flag.String("witness", "", "")
	flag.Parse()
	log, err := note.NewVerifier(*logKey)
	files, err2 := filepath.Glob(filepath.Join(flag.Arg(0), "*"))
	if err != nil || err2 != nil {
		fmt.Fprintln(os.Stderr, err, err2)
		os.Exit(1)
	}
	valid, invalid, reason := 0, 0, ""
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err == nil {
			err = verify(string(content), log, *witness)
		}
		if err == nil {
			valid++
			continue
		}
		invalid++
		if reason == "" {
			reason = err.Error()
		}
	}
	fmt.Printf("%d %d %s\n", valid, invalid, reason)
}
